//! The grammar of NOTIFY's messages: `conformance/vectors/messages.json`, which every client reads.

use dlock_protocol::event::Ended;
use serde_json::Value as Json;

/// The bytes of a string in which one character stands for one byte.
fn bytes(text: &Json) -> Vec<u8> {
    let text = text.as_str().expect("a string");
    text.chars().map(|one| u8::try_from(u32::from(one)).expect("at most U+00FF")).collect()
}

#[test]
fn every_message_of_the_vector_is_read_as_the_vector_says() {
    let vector: Json =
        serde_json::from_str(include_str!("../../../conformance/vectors/messages.json")).expect("JSON");
    let own: Vec<_> = vector["messages"].as_array().expect("messages").iter().map(bytes).collect();
    for case in vector["cases"].as_array().expect("cases") {
        let payload = bytes(&case["payload"]);
        let found = match Ended::read(&payload) {
            Some((message, ended)) if own.iter().any(|own| own == message) => {
                assert_eq!(message, bytes(&case["message"]), "{case}");
                match ended {
                    Some(Ended::Granted(fence)) => {
                        assert_eq!(case["fence"].as_u64(), Some(fence.get()), "{case}");
                        "granted"
                    }
                    Some(Ended::TimedOut) => "timeout",
                    Some(Ended::Cancelled) => "cancelled",
                    Some(Ended::Refused) => "refused",
                    None => "wake",
                }
            }
            _ => "not mine",
        };
        assert_eq!(case["outcome"], found, "{case}");
    }
}
