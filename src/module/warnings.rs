//! What an operator has been warned of: see [`crate::warnings`].

bitflags::bitflags! {
    #[derive(Clone, Copy, Default, PartialEq, Eq)]
    pub struct Warnings: u8 {
        const EVICTION = 1;
        const EVENTS = 2;
        const GRACE = 4;
        const MARK = 8;
    }
}

impl Warnings {
    pub fn count(self) -> u64 {
        self.bits().count_ones().into()
    }

    /// The options that are to be looked at.
    pub fn words(self) -> String {
        self.iter().map(word).collect::<Vec<_>>().join(",")
    }
}

fn word(warning: Warnings) -> &'static str {
    match warning {
        Warnings::EVICTION => "maxmemory-policy",
        Warnings::EVENTS => "notify-keyspace-events",
        Warnings::GRACE => "restart-grace",
        _ => "fence-mark",
    }
}
