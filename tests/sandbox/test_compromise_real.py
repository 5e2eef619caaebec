"""Attacks on the real daemons from inside a victim's sandbox: the attacker stands where cb_jobhelper or tie-cloud-app would, the others are the
product's own programs."""
import os
import socket
import subprocess
import threading

import pytest

import sandbox_node
from protobuf_by_hand import field, fields
from sandbox_node import ask, connect, receive_frame, send_frame, wait_until

UNAUTHENTICATED = 5


def message(data):
    return dict(fields(data))


def call(sock, request):
    send_frame(sock, request)
    return message(receive_frame(sock))


REAL_KEYS = ["key_protectiond", "workload_servicesd", "cloudboardd"]
REAL_RUNTIME = ["tie-model-owner", "afm-runtime", "tie-status-probe"]


@pytest.fixture(scope="module", params=["bubblewrap", "direct"])
def keys_node(request, tmp_path_factory):
    sandbox_node.need_programs(REAL_KEYS)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    node = sandbox_node.SandboxNode(tmp_path_factory.mktemp("keys"), victims={"cb_jobhelper": "attacker"}, real=REAL_KEYS,
                                    extra=["--sandbox", request.param, "--listen", f"127.0.0.1:{port}", "--prewarmed", "0"])
    place_model_facts(node)
    node.up()
    yield node
    node.clean()


def place_model_facts(node):
    """Enough of a model for workload_servicesd to name it."""
    folder = node.assets / "models" / sandbox_node.MODEL
    digest = "ab" * 32
    (folder / "model.toml").write_text(f'architecture = "llama"\ncontext_tokens = 512\ntitle = "t"\nsource = "s"\nmodel_id = "{digest}"\nweights_sha256 = "{digest}"\n'
                                       f'tokenizer_sha256 = "{digest}"\ntemplate_sha256 = "{digest}"\n')


class Helper:
    """A taken-over cb_jobhelper: what it sends to workload_servicesd goes out of its own sandbox, over its own connection."""

    def __init__(self, node):
        self.sock = connect(node.socket("cb_jobhelper"))

    def decap(self, ticket, key_id, encapsulated):
        request = field(1, ticket) + field(2, key_id) + field(3, encapsulated)
        answer = ask(self.sock, f"edge_frame 1 {request.hex()}")
        return message(bytes.fromhex(answer.split()[1])) if answer.startswith("reply ") else None


@pytest.fixture(scope="module")
def key_id(keys_node):
    def newest():
        bundle = call(connect(keys_node.socket("wsd-claims")), field(1, os.urandom(32))).get(1)
        return bundle and message(bundle)[2]

    return wait_until(newest, what="a published key")


def authorize(node, key_id, encapsulated, ticket):
    import hashlib
    reply = call(connect(node.socket("wsd-authorize")), field(1, hashlib.sha256(encapsulated).digest()) + field(2, ticket) + field(3, key_id))
    assert 1 not in reply, reply


def is_refused(reply):
    return reply is None or (1 not in reply and message(reply[4]).get(1) == UNAUTHENTICATED)


# Implicit rejection makes every ciphertext of the right size decapsulate to something, so random bytes are a real attempt.
def random_encapsulation():
    return os.urandom(1120)


def test_control_a_ticket_opens_its_own_encapsulation_once(keys_node, key_id):
    encapsulated, ticket = random_encapsulation(), os.urandom(32)
    authorize(keys_node, key_id, encapsulated, ticket)
    reply = Helper(keys_node).decap(ticket, key_id, encapsulated)
    assert len(reply[1]) == 32 and 4 not in reply


def test_decapsulating_without_a_ticket_is_refused(keys_node, key_id):
    assert is_refused(Helper(keys_node).decap(b"", key_id, random_encapsulation()))
    assert is_refused(Helper(keys_node).decap(os.urandom(32), key_id, random_encapsulation()))


def test_a_used_ticket_is_refused(keys_node, key_id):
    encapsulated, ticket = random_encapsulation(), os.urandom(32)
    authorize(keys_node, key_id, encapsulated, ticket)
    assert 1 in Helper(keys_node).decap(ticket, key_id, encapsulated)
    assert is_refused(Helper(keys_node).decap(ticket, key_id, encapsulated))


def test_a_ticket_does_not_open_another_request(keys_node, key_id):
    mine, ticket = random_encapsulation(), os.urandom(32)
    authorize(keys_node, key_id, mine, ticket)
    assert is_refused(Helper(keys_node).decap(ticket, key_id, random_encapsulation()))


def test_a_captured_encapsulation_does_not_open_again_with_a_new_ticket(keys_node, key_id):
    encapsulated, first, second = random_encapsulation(), os.urandom(32), os.urandom(32)
    authorize(keys_node, key_id, encapsulated, first)
    assert 1 in Helper(keys_node).decap(first, key_id, encapsulated)
    try:
        authorize(keys_node, key_id, encapsulated, second)
    except AssertionError:
        return  # refused already here
    assert is_refused(Helper(keys_node).decap(second, key_id, encapsulated))


def test_the_helper_cannot_reach_the_sockets_of_the_key_daemons(keys_node):
    with connect(keys_node.socket("cb_jobhelper")) as sock:
        paths = " ".join(str(keys_node.socket(n)) for n in ("wsd-authorize", "wsd-claims", "kps", "cloudboard-control"))
        assert ask(sock, f"connect_unix_path {paths}") == "stopped"


# ---- the runtime ----

@pytest.fixture(scope="module")
def runtime_node(tmp_path_factory):
    sandbox_node.need_programs(REAL_RUNTIME + ["tie"])
    if sandbox_node.model_file() is None:
        pytest.skip("no model file: ./dev model fetches it")
    node = sandbox_node.SandboxNode(tmp_path_factory.mktemp("runtime"), victims={"tie-cloud-app": "attacker"}, real=REAL_RUNTIME,
                                    extra=["--listen", "127.0.0.1:0"])
    sandbox_node.add_model(node, sandbox_node.model_file(), "smollm2")
    node.up()
    yield node
    node.clean()


@pytest.fixture
def stub_inside(runtime_node, tmp_path):
    """A gRPC stub whose bytes leave from inside the app's sandbox."""
    grpc = pytest.importorskip("grpc")
    service = pytest.importorskip("tritonclient.grpc.service_pb2_grpc")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()

    def pump(a, b):
        try:
            while data := a.recv(65536):
                b.sendall(data)
        except OSError:
            pass
        for s in (a, b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def serve():
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            inside = connect(runtime_node.socket("tie_cloud_app"))
            send_frame(inside, f"relay {runtime_node.model_socket('runtime', 'smollm2')}".encode())
            inside.settimeout(None)
            for pair in ((client, inside), (inside, client)):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    channel = grpc.insecure_channel(f"unix:{tmp_path / 's'}")
    yield service.GRPCInferenceServiceStub(channel)
    channel.close()
    listener.close()


ALLOWED = {"ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelConfig", "ModelStreamInfer"}


def every_call():
    service_pb2 = pytest.importorskip("tritonclient.grpc.service_pb2")
    service = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    return [(m.name, getattr(service_pb2, m.input_type.name)) for m in service.methods]


def test_control_the_app_may_ask_whether_the_runtime_lives(stub_inside):
    request = dict(every_call())["ServerLive"]
    assert stub_inside.ServerLive(request(), timeout=10).live


def test_every_administrative_call_is_refused_from_the_apps_place(stub_inside):
    import grpc
    tried = 0
    for name, request in every_call():
        if name in ALLOWED:
            continue
        with pytest.raises(grpc.RpcError) as refused:
            getattr(stub_inside, name)(request(), timeout=10)
        assert refused.value.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED), name
        tried += 1
    assert tried >= 12


def test_the_app_reaches_neither_probe_nor_owner(runtime_node):
    with connect(runtime_node.socket("tie_cloud_app")) as sock:
        paths = f"{runtime_node.model_socket('probe', 'smollm2')} {runtime_node.socket('owner')}"
        assert ask(sock, f"connect_unix_path {paths}") == "stopped"
        assert ask(sock, f"read_file {runtime_node.assets}/models/smollm2/weights.gguf") == "stopped"


# ---- one model's runtime and the weights of another ----

OWN, OTHER = "model-one", "model-two"
PERMISSION_DENIED = 20


def about(kind, model):
    """proto/owner.proto: attach 1, prepare_prefix 3, seal_prefix 4, attach_prefix 5, reset_prefix 6; each names its model first."""
    return field(kind, field(1, model.encode())).hex()


def add_tiny_model(node, name, seed):
    folder = node.assets / "models" / name
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([sandbox_node.BUILD / "bin/pack_model_images", "tiny", node.place / "unused", folder / "tokenizer.img", "--context", "64", "--seed", str(seed),
                    "--gguf", folder / "weights.gguf"], check=True, capture_output=True)
    (folder / "model.toml").write_text("")


def two_models(place, extra):
    sandbox_node.need_programs(["tie-model-owner", "pack_model_images"])
    node = sandbox_node.SandboxNode(place, victims={"afm-runtime": "attacker"}, real=["tie-model-owner"], extra=[*extra, "--listen", "127.0.0.1:0"])
    add_tiny_model(node, OWN, 1)
    add_tiny_model(node, OTHER, 2)
    node.up()
    return node


@pytest.fixture(scope="module", params=["bubblewrap", "direct"])
def two_models_node(request, tmp_path_factory):
    node = two_models(tmp_path_factory.mktemp("two"), ["--sandbox", request.param])
    yield node
    node.clean()


@pytest.fixture(scope="module")
def two_models_unprotected(tmp_path_factory):
    node = two_models(tmp_path_factory.mktemp("open"), ["--insecure-no-sandbox"])
    yield node
    node.clean()


def from_the_runtime_of(node, model, path, request):
    """What the owner says to one request out of that runtime's sandbox, after it serves: (descriptors, reply), or None where it is not reached."""
    with connect(node.model_socket("runtime", model)) as sock:
        assert ask(sock, "serve") == "ok"
        words = ask(sock, f"ask_socket {path} {request}").split()
    return (int(words[1]), message(bytes.fromhex(words[2] if len(words) > 2 else ""))) if words[0] == "reply" else None


@pytest.mark.parametrize("model", [OWN, OTHER])
def test_control_a_runtime_gets_its_own_model(two_models_node, model):
    descriptors, reply = from_the_runtime_of(two_models_node, model, two_models_node.model_socket("weights", model), about(1, model))
    assert descriptors == 2 and message(reply[2])[1] == model.encode()


@pytest.mark.parametrize("kind", [1, 3, 4, 5, 6])
def test_a_runtime_gets_nothing_of_another_model_over_its_own_socket(two_models_node, kind):
    descriptors, reply = from_the_runtime_of(two_models_node, OWN, two_models_node.model_socket("weights", OWN), about(kind, OTHER))
    assert descriptors == 0 and message(reply[1])[1] == PERMISSION_DENIED and set(reply) == {1}


def test_a_runtime_reaches_neither_another_models_socket_nor_the_operators(two_models_node):
    node = two_models_node
    for path, request in ((node.model_socket("weights", OTHER), about(1, OTHER)), (node.socket("owner"), field(2, b"").hex())):
        assert path.exists()
        assert from_the_runtime_of(node, OWN, path, request) is None
    with connect(node.model_socket("runtime", OWN)) as sock:
        assert ask(sock, f"write_anywhere {node.run}/weights {node.run}/weights/{OWN} {node.run}/weights/{OTHER}") == "stopped", "nor may it put a socket of its own there"


def test_control_without_a_sandbox_it_reaches_both(two_models_unprotected):
    node = two_models_unprotected
    assert from_the_runtime_of(node, OWN, node.model_socket("weights", OTHER), about(1, OTHER))[0] == 2
    assert 3 in from_the_runtime_of(node, OWN, node.socket("owner"), field(2, b"").hex())[1], "the states of all models"


def test_even_without_a_sandbox_each_socket_answers_for_its_model_and_the_operators_hands_out_none(two_models_unprotected):
    node = two_models_unprotected
    for path in (node.model_socket("weights", OWN), node.socket("owner")):
        descriptors, reply = from_the_runtime_of(node, OWN, path, about(1, OTHER))
        assert descriptors == 0 and message(reply[1])[1] == PERMISSION_DENIED
