#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    dlock_fuzz::arguments(data);
});
