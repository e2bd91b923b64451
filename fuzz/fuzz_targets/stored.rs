//! Reads arbitrary bytes as a stored lock.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    dlock_fuzz::stored(data);
});
