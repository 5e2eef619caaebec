//! The C face. Every entry point checks its pointers and catches panics.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

use crate::{Failure, Limits, Template};

const OK: i32 = 0;
const BAD_INPUT: i32 = 1;
const TOO_LARGE: i32 = 2;
const REFUSED: i32 = 3;
const INTERNAL: i32 = 4;

#[repr(C)]
pub struct EdgeBuffer {
    data: *mut u8,
    size: usize,
    capacity: usize,
}

#[repr(C)]
pub struct EdgeTemplateLimits {
    fuel: u64,
    max_output_bytes: u64,
    max_source_bytes: u64,
    trim_blocks: u8,
    lstrip_blocks: u8,
}

fn fill(out: *mut EdgeBuffer, text: String) {
    if out.is_null() {
        return;
    }
    let mut bytes = std::mem::ManuallyDrop::new(text.into_bytes());
    let buffer = EdgeBuffer {
        data: bytes.as_mut_ptr(),
        size: bytes.len(),
        capacity: bytes.capacity(),
    };
    // SAFETY: `out` is non-null and the header demands a writable edge_buffer there.
    unsafe { out.write(buffer) };
}

/// # Safety
/// `data` must be readable for `size` bytes (or `size` be 0) for the duration of the call.
unsafe fn text_of<'a>(data: *const u8, size: usize) -> Result<&'a str, Failure> {
    if size == 0 {
        return Ok("");
    }
    if data.is_null() {
        return Err(Failure::BadInput("no text was given".into()));
    }
    let bytes = unsafe { std::slice::from_raw_parts(data, size) };
    std::str::from_utf8(bytes).map_err(|_| Failure::BadInput("text is not valid UTF-8".into()))
}

/// A panic's message could hold user text: nothing is printed.
fn silence_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| std::panic::set_hook(Box::new(|_| {})));
}

fn guarded(out: *mut EdgeBuffer, work: impl FnOnce() -> Result<Option<String>, Failure>) -> i32 {
    silence_panics();
    let (code, text) = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(None)) => return OK,
        Ok(Ok(Some(text))) => (OK, text),
        Ok(Err(Failure::BadInput(text))) => (BAD_INPUT, text),
        Ok(Err(Failure::TooLarge(text))) => (TOO_LARGE, text),
        Ok(Err(Failure::Refused(text))) => (REFUSED, text),
        Err(_) => (INTERNAL, "the template engine failed".to_string()),
    };
    fill(out, text);
    code
}

/// # Safety
/// As edge_text.h says: readable inputs, writable outputs.
#[no_mangle]
pub unsafe extern "C" fn edge_template_compile(
    source: *const u8,
    source_size: usize,
    limits: *const EdgeTemplateLimits,
    out_template: *mut *mut Template,
    out_error: *mut EdgeBuffer,
) -> i32 {
    guarded(out_error, || {
        if limits.is_null() || out_template.is_null() {
            return Err(Failure::BadInput("no limits or output were given".into()));
        }
        unsafe { out_template.write(std::ptr::null_mut()) };
        let limits = unsafe { &*limits };
        let template = Template::compile(
            unsafe { text_of(source, source_size)? },
            &Limits {
                fuel: limits.fuel,
                max_output_bytes: limits.max_output_bytes as usize,
                max_source_bytes: limits.max_source_bytes as usize,
                trim_blocks: limits.trim_blocks != 0,
                lstrip_blocks: limits.lstrip_blocks != 0,
            },
        )?;
        unsafe { out_template.write(Box::into_raw(Box::new(template))) };
        Ok(None)
    })
}

/// # Safety
/// `compiled` came from edge_template_compile and is not freed yet; the rest as edge_text.h says.
#[no_mangle]
pub unsafe extern "C" fn edge_template_render(
    compiled: *const Template,
    context_json: *const u8,
    context_size: usize,
    now_unix_s: i64,
    out: *mut EdgeBuffer,
) -> i32 {
    guarded(out, || {
        let template = unsafe { compiled.as_ref() }
            .ok_or_else(|| Failure::BadInput("no template was given".into()))?;
        template
            .render(unsafe { text_of(context_json, context_size)? }, now_unix_s)
            .map(Some)
    })
}

/// # Safety
/// `compiled` came from edge_template_compile, or is null; it is not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn edge_template_free(compiled: *mut Template) {
    if !compiled.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| {
            drop(unsafe { Box::from_raw(compiled) })
        }));
    }
}

/// # Safety
/// `buffer` was filled by this library, or is zeroed, or null.
#[no_mangle]
pub unsafe extern "C" fn edge_buffer_free(buffer: *mut EdgeBuffer) {
    let Some(buffer) = (unsafe { buffer.as_mut() }) else {
        return;
    };
    if !buffer.data.is_null() {
        drop(unsafe { Vec::from_raw_parts(buffer.data, buffer.size, buffer.capacity) });
    }
    *buffer = EdgeBuffer {
        data: std::ptr::null_mut(),
        size: 0,
        capacity: 0,
    };
}
