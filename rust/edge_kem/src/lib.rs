//! ML-KEM-768 with a C face; the contract is in include/edge_kem.h.
#![deny(unsafe_op_in_unsafe_fn)]

use libcrux_ml_kem::mlkem768::{self, MlKem768Ciphertext, MlKem768PrivateKey, MlKem768PublicKey};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{compiler_fence, Ordering};

const SEED: usize = 64;
const PUBLIC: usize = 1184;
const PRIVATE: usize = 2400;
const CIPHERTEXT: usize = 1088;
const SHARED: usize = 32;

const OK: i32 = 0;
const INVALID_KEY: i32 = 1;
const INTERNAL: i32 = 2;

/// Zeroes in a way the compiler keeps.
fn wipe(bytes: &mut [u8]) {
    for byte in bytes.iter_mut() {
        // SAFETY: `byte` is a valid, exclusive reference.
        unsafe { std::ptr::write_volatile(byte, 0) };
    }
    compiler_fence(Ordering::SeqCst);
}

/// Runs `body`; a panic becomes an error code, since it may not cross into C.
fn guarded(body: impl FnOnce() -> i32) -> i32 {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(INTERNAL)
}

/// # Safety
/// `from` points at N readable bytes.
unsafe fn read<const N: usize>(from: *const u8) -> [u8; N] {
    // SAFETY: promised by the caller; arrays of bytes have no alignment.
    unsafe { std::ptr::read(from.cast::<[u8; N]>()) }
}

/// # Safety
/// `to` points at `bytes.len()` writable bytes that do not overlap `bytes`.
unsafe fn write(bytes: &[u8], to: *mut u8) {
    // SAFETY: promised by the caller.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
}

/// # Safety
/// Buffers have the lengths of edge_kem.h.
#[no_mangle]
pub unsafe extern "C" fn edge_kem_mlkem768_keypair(
    seed: *const u8,
    public_key: *mut u8,
    private_key: *mut u8,
) -> i32 {
    guarded(|| {
        // SAFETY: lengths promised by the caller.
        let mut seed = unsafe { read::<SEED>(seed) };
        let pair = mlkem768::generate_key_pair(seed);
        wipe(&mut seed);
        let (private, public) = pair.into_parts();
        let mut private: [u8; PRIVATE] = private.into();
        // SAFETY: lengths promised by the caller.
        unsafe {
            write(public.as_slice(), public_key);
            write(&private, private_key);
        }
        wipe(&mut private);
        OK
    })
}

/// # Safety
/// Buffers have the lengths of edge_kem.h.
#[no_mangle]
pub unsafe extern "C" fn edge_kem_mlkem768_encapsulate(
    public_key: *const u8,
    randomness: *const u8,
    ciphertext: *mut u8,
    shared: *mut u8,
) -> i32 {
    guarded(|| {
        // SAFETY: lengths promised by the caller.
        let (key, mut random) = unsafe { (read::<PUBLIC>(public_key), read::<SHARED>(randomness)) };
        let key = MlKem768PublicKey::from(key);
        if !mlkem768::validate_public_key(&key) {
            wipe(&mut random);
            return INVALID_KEY;
        }
        let (sealed, mut secret) = mlkem768::encapsulate(&key, random);
        wipe(&mut random);
        // SAFETY: lengths promised by the caller.
        unsafe {
            write(sealed.as_slice(), ciphertext);
            write(&secret, shared);
        }
        wipe(&mut secret);
        OK
    })
}

/// # Safety
/// Buffers have the lengths of edge_kem.h.
#[no_mangle]
pub unsafe extern "C" fn edge_kem_mlkem768_decapsulate(
    private_key: *const u8,
    ciphertext: *const u8,
    shared: *mut u8,
) -> i32 {
    guarded(|| {
        // SAFETY: lengths promised by the caller.
        let (private, sealed) =
            unsafe { (read::<PRIVATE>(private_key), read::<CIPHERTEXT>(ciphertext)) };
        let private = MlKem768PrivateKey::from(private);
        let sealed = MlKem768Ciphertext::from(sealed);
        let valid = mlkem768::validate_private_key(&private, &sealed);
        let mut secret = if valid {
            mlkem768::decapsulate(&private, &sealed)
        } else {
            [0; SHARED]
        };
        let mut private: [u8; PRIVATE] = private.into();
        wipe(&mut private);
        if !valid {
            return INVALID_KEY;
        }
        // SAFETY: lengths promised by the caller.
        unsafe { write(&secret, shared) };
        wipe(&mut secret);
        OK
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_agrees_and_a_changed_ciphertext_does_not() {
        let (mut public, mut private) = ([0u8; PUBLIC], [0u8; PRIVATE]);
        let (mut sealed, mut mine, mut theirs) = ([0u8; CIPHERTEXT], [0u8; SHARED], [0u8; SHARED]);
        // SAFETY: every buffer has its constant's length.
        unsafe {
            assert_eq!(
                edge_kem_mlkem768_keypair(
                    [7u8; SEED].as_ptr(),
                    public.as_mut_ptr(),
                    private.as_mut_ptr()
                ),
                OK
            );
            assert_eq!(
                edge_kem_mlkem768_encapsulate(
                    public.as_ptr(),
                    [9u8; SHARED].as_ptr(),
                    sealed.as_mut_ptr(),
                    mine.as_mut_ptr()
                ),
                OK
            );
            assert_eq!(
                edge_kem_mlkem768_decapsulate(
                    private.as_ptr(),
                    sealed.as_ptr(),
                    theirs.as_mut_ptr()
                ),
                OK
            );
            assert_eq!(mine, theirs);
            sealed[0] ^= 1;
            assert_eq!(
                edge_kem_mlkem768_decapsulate(
                    private.as_ptr(),
                    sealed.as_ptr(),
                    theirs.as_mut_ptr()
                ),
                OK
            );
            assert_ne!(mine, theirs);
            public[1] = 0xff;
            public[0] = 0xff;
            assert_eq!(
                edge_kem_mlkem768_encapsulate(
                    public.as_ptr(),
                    [9u8; SHARED].as_ptr(),
                    sealed.as_mut_ptr(),
                    mine.as_mut_ptr()
                ),
                INVALID_KEY
            );
        }
    }
}
