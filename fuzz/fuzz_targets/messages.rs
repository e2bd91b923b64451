//! Reads the message of a wait, as a client receives it from any client that may publish on its channel.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    dlock_fuzz::messages(data);
});
