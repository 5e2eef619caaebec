"""Who may use whom: for each room (folder under src/) the rooms whose headers it may include. A room may always include itself.

Generated protobuf headers count as the room `proto`. The finished programs are checked by their symbols in PROGRAM_RULES.
"""

ROOMS = {
    "base": set(),
    "os": {"base"},
    "proto": set(),
    "crypto": {"base"},
    "model_files": {"base"},
    "model_import": {"base", "os", "model_files"},
    "text": {"base", "os", "crypto", "model_files"},
    "cache/kvxfer": {"base", "os", "proto"},
    "cache/ensemble_warden": {"base", "crypto"},
    "cache/store": {"base", "os", "crypto", "proto"},
    "cache/prefix": {"base", "os", "crypto", "proto"},
    "inference/bones": {"base", "os", "model_files"},
    "inference/engine": {"base", "os", "inference/bones", "text", "cache/prefix", "cache/kvxfer"},
    "inference/hosts/server": {"base", "os", "crypto", "proto", "inference/bones", "inference/engine", "text", "cache/prefix", "cache/kvxfer"},
    "keys/framed_server": {"base", "os"},
    "keys/replay_guard": {"base", "os", "crypto"},
    "keys/tokens": {"base", "os", "crypto"},
    "keys/token_spentd": {"base", "os", "crypto", "proto", "keys/tokens", "keys/replay_guard", "keys/framed_server"},
    "keys/token_issuer": {"base", "os", "crypto", "keys/tokens"},
    "keys/attestation": {"base", "crypto", "proto"},
    "keys/tls_link": {"base", "os"},
    "keys/tpm": {"base", "os", "crypto", "keys/attestation"},
    "keys/key_protectiond": {"base", "os", "crypto", "proto", "keys/attestation", "keys/tpm", "keys/tls_link", "supervision/rpc"},
    # supervision/model_owner: for model_identity.h and served_version.h alone.
    "keys/workload_servicesd": {"base", "os", "crypto", "proto", "keys/attestation", "keys/framed_server", "keys/tokens", "keys/tpm", "keys/tls_link", "supervision/model_owner", "supervision/rpc"},
    "request/frame_link": {"base", "os"},
    "request/cloudboardd": {"base", "os", "crypto", "proto", "keys/replay_guard", "request/frame_link"},
    "request/cb_jobhelper": {"base", "os", "crypto", "proto", "keys/tokens", "request/frame_link", "request/cloud_app/delta_padding"},
    "request/cloud_app/delta_padding": {"base"},
    "request/cloud_app/constraints": {"base", "proto", "text", "request/cloud_app"},
    "request/cloud_app": {"base", "os", "crypto", "proto", "text", "request/frame_link", "request/cloud_app/delta_padding", "request/cloud_app/constraints", "cache/kvxfer", "cache/ensemble_warden", "cache/store",
                          "cache/prefix"},  # system_prompts.h alone
    # supervision/gpuhealthd: for nvml_provider.h alone.
    "supervision/model_owner": {"base", "os", "crypto", "proto", "inference/bones", "model_files", "text", "cache/prefix", "supervision/signed_assets", "supervision/gpuhealthd"},
    "supervision/rpc": {"base", "os"},
    "supervision/stateless_proof": {"base", "os"},
    "supervision/signed_assets": {"base", "os", "crypto"},
    "supervision/gpuhealthd": {"base", "os", "proto", "supervision/rpc"},
    "supervision/status_probe": {"base", "os", "proto", "supervision/rpc"},
    "supervision/controllerd": {"base", "os", "proto", "supervision/rpc"},
    # supervision/model_owner: for served_version.h alone.
    "supervision/launcher": {"base", "os", "crypto", "keys/tokens", "supervision/signed_assets", "supervision/model_owner"},
    "client/token_wallet": {"base", "crypto", "keys/tokens", "client/session"},
    "client/session": {"base", "crypto", "proto", "keys/attestation", "keys/tokens"},
    "client/turn_keys": {"base", "os", "crypto", "proto"},
    "client/proxy": {"base", "os", "crypto", "proto", "client/session", "client/turn_keys"},
    "client/cli": {"base", "os", "crypto", "proto", "text", "model_files", "model_import", "inference/bones", "keys/attestation", "keys/tokens", "keys/token_issuer", "client/token_wallet", "client/session", "client/turn_keys", "client/proxy",
                   "supervision/launcher", "supervision/rpc", "supervision/stateless_proof", "supervision/signed_assets", "supervision/model_owner", "cache/prefix", "request/cloud_app/constraints"},
}

# Symbols (substrings of demangled names) that must not be in a finished program, and ones that must (so that the check can fail).
PROGRAM_RULES = {
    "tie-cloud-app": {"never": ["grpc::", "google::protobuf::DescriptorPool", "tie::bones::", "tie::engine::", "image_decoder", "jpeg", "tie::crypto::ReceiverContext"], "must": ["tie::text::"]},
    "cb_jobhelper": {"never": ["google::protobuf::DescriptorPool", "tie::bones::", "tie::text::", "minijinja", "grpc::"], "must": ["tie::crypto::"]},
    "cloudboardd": {"never": ["ReceiverContext", "ChunkOpener", "decapsulate", "tie::text::", "tie::bones::", "minijinja"], "must": ["grpc::"]},
    "key_protectiond": {"never": ["minijinja", "tie::text::", "tie::bones::", "ChunkOpener", "llguidance"], "must": ["decapsulate"]},
    "token_spentd": {"never": ["minijinja", "tie::text::", "tie::bones::", "ChunkOpener", "grpc::"], "must": ["tie::tokens::"]},
    "workload_servicesd": {"never": ["minijinja", "tie::text::", "tie::bones::", "llguidance"], "must": ["grpc::"]},
    "afm-runtime": {"never": ["ChunkOpener", "ReceiverContext", "ensemble_warden", "minijinja"], "must": ["tie::bones::", "tie::engine::"]},
    "tie-model-owner": {"never": ["tie::engine::", "minijinja", "ChunkOpener"], "must": ["tie::bones::"]},
    "tie-controllerd": {"never": ["tie::bones::", "tie::engine::", "minijinja"], "must": ["grpc::"]},
    "tie-status-probe": {"never": ["tie::bones::", "tie::engine::", "minijinja"], "must": ["grpc::"]},
    "gpuhealthd": {"never": ["tie::bones::", "tie::engine::", "minijinja"], "must": ["grpc::"]},
}
