//! Reads the stored bytes of a lock.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    dlock_fuzz::stored(data);
});
