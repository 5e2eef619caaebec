// ML-KEM-768 (FIPS 203) with a C face: a thin wrapper over libcrux-ml-kem (formally verified, no C beneath it).
// Pure functions; any thread; no allocation that outlives a call; the caller owns every buffer, each exactly as long as its constant says.
// Callers: src/crypto only. Secrets in the caller's buffers are the caller's to wipe; the wrapper wipes its own copies.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EDGE_KEM_MLKEM768_SEED_BYTES 64        /* d || z */
#define EDGE_KEM_MLKEM768_PUBLIC_BYTES 1184
#define EDGE_KEM_MLKEM768_PRIVATE_BYTES 2400   /* expanded */
#define EDGE_KEM_MLKEM768_CIPHERTEXT_BYTES 1088
#define EDGE_KEM_MLKEM768_RANDOM_BYTES 32
#define EDGE_KEM_MLKEM768_SHARED_BYTES 32

#define EDGE_KEM_OK 0
#define EDGE_KEM_INVALID_KEY 1                 /* public key: modulus check; private key: hash check */
#define EDGE_KEM_INTERNAL 2                    /* a panic was caught */

int32_t edge_kem_mlkem768_keypair(const uint8_t* seed, uint8_t* public_key, uint8_t* private_key);
int32_t edge_kem_mlkem768_encapsulate(const uint8_t* public_key, const uint8_t* randomness, uint8_t* ciphertext, uint8_t* shared);
/* A changed ciphertext of the right length gives another shared secret (implicit rejection), never an error. */
int32_t edge_kem_mlkem768_decapsulate(const uint8_t* private_key, const uint8_t* ciphertext, uint8_t* shared);

#ifdef __cplusplus
}
#endif
