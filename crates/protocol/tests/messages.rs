//! The grammar of NOTIFY's messages: `conformance/vectors/messages.json`, which every client reads.

use dlock_protocol::event::{Ended, Published};
use serde_json::Value as Json;
use std::collections::HashMap;

/// The bytes of a string in which one character stands for one byte.
fn bytes(text: &Json) -> Vec<u8> {
    let text = text.as_str().expect("a string");
    text.chars().map(|one| u8::try_from(u32::from(one)).expect("at most U+00FF")).collect()
}

#[test]
fn every_message_of_the_vector_is_read_as_the_vector_says() {
    let vector: Json =
        serde_json::from_str(include_str!("../../../conformance/vectors/messages.json")).expect("JSON");
    let own: HashMap<Vec<u8>, Vec<u8>> = vector["messages"]
        .as_array()
        .expect("messages")
        .iter()
        .map(|message| {
            let (id, secret) =
                message.as_str().and_then(|text| text.split_once(' ')).expect("an id and a secret");
            (id.into(), secret.into())
        })
        .collect();
    for case in vector["cases"].as_array().expect("cases") {
        let payload = bytes(&case["payload"]);
        let read = Published::read(&payload).and_then(|read| Some((read, own.get(read.id)?)));
        let found = match read {
            Some((Published { id, ended, secret }, own)) => {
                assert_eq!(id, bytes(&case["id"]), "{case}");
                match ended {
                    Some(Ended::Granted(fence)) if secret == own => {
                        assert_eq!(case["fence"].as_u64(), Some(fence.get()), "{case}");
                        "granted"
                    }
                    Some(Ended::TimedOut) => "timeout",
                    Some(Ended::Cancelled) => "cancelled",
                    Some(Ended::Refused) => "refused",
                    _ => "wake",
                }
            }
            None => "not mine",
        };
        assert_eq!(case["outcome"], found, "{case}");
    }
}
