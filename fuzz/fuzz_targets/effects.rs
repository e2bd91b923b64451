//! Reads and applies effects: the changes of a lock as replicas and the append only file get them.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    dlock_fuzz::effects(data);
});
