//! The bytes of a stored lock or of an effect. Parsed and written without the module's codec
//! (`crates/core/src/codec.rs`, which describes the layout), so that a change of the layout fails a test.

/// A lock, or an effect: the change of a lock that the server replicates and logs. To forge bytes, a test
/// sets fields to values that the module never writes.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Shares one byte with the mode.
    pub version: u8,
    /// Of a whole lock: 0 free, 1 exclusive, 2 shared, 3 permits. Of a change of some holds: 6 for a shared
    /// lock, 7 for one of permits.
    pub mode: u8,
    /// Number that identifies the boot of the writer's machine.
    pub boot: u64,
    /// Server clock minus boot-time clock of the writer, in ms.
    pub offset: u64,
    /// Server clock at the write, in ms.
    pub at: u64,
    /// Present in modes 3 and 7.
    pub permits: u64,
    /// Absent in mode 1, as `counts` is.
    pub delay_until: u64,
    /// Lengths of `dropped` and of `put` as they are stored. Forged bytes can have wrong ones.
    pub counts: (u64, u64),
    /// Tokens of the holds that the effect removes.
    pub dropped: Vec<Vec<u8>>,
    /// Holds of the lock, or those that the effect adds or replaces.
    pub put: Vec<HoldLayout>,
}

/// A hold of a lock. Times are in ms, those of `deadline` and `granted` by the server clock.
#[derive(Clone, Debug)]
pub struct HoldLayout {
    pub fence: u64,
    pub deadline: u64,
    pub granted: u64,
    pub ttl: u64,
    /// This field and the next three are present only if one of them differs from its default.
    pub count: u64,
    pub delay: u64,
    pub ephemeral: u8,
    pub label: Vec<u8>,
    pub token: Vec<u8>,
}

impl Layout {
    /// Parses the bytes. Panics if they are too short or too long.
    #[track_caller]
    pub fn of(bytes: &[u8]) -> Layout {
        let mut rest = Rest(bytes);
        let head = rest.byte();
        let (version, mode) = (head / 16, head % 16);
        let boot = u64::from_le_bytes(rest.take(8).try_into().expect("8 bytes"));
        let (offset, at) = (rest.six_bytes(), rest.six_bytes());
        let permits = if mode % 4 == 3 { rest.number() } else { 0 };
        let mut number = || if mode % 4 == 1 { 0 } else { rest.number() };
        let (delay_until, dropped, put) = (number(), number(), number());
        let counts = (dropped, if mode % 4 == 1 { 1 } else { put });
        let dropped = (0..counts.0).map(|_| rest.text()).collect();
        let put = (0..counts.1).map(|_| HoldLayout::of(&mut rest, at)).collect();
        assert!(rest.0.is_empty(), "bytes left: {}", rest.0.escape_ascii());
        let layout = Layout { version, mode, boot, offset, at, permits, delay_until, counts, dropped, put };
        assert_eq!(layout.bytes(), bytes, "every number has its shortest form");
        layout
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = vec![self.version * 16 + self.mode];
        out.extend(self.boot.to_le_bytes());
        out.extend(&self.offset.to_le_bytes()[..6]);
        out.extend(&self.at.to_le_bytes()[..6]);
        if self.mode % 4 == 3 {
            out.extend(leb128(self.permits));
        }
        if self.mode % 4 != 1 {
            out.extend([self.delay_until, self.counts.0, self.counts.1].map(leb128).concat());
        }
        for token in &self.dropped {
            out.push(token.len() as u8);
            out.extend(token);
        }
        for hold in &self.put {
            out.extend(hold.bytes(self.at));
        }
        out
    }
}

impl HoldLayout {
    fn of(rest: &mut Rest<'_>, at: u64) -> HoldLayout {
        let granted = at.wrapping_sub(rest.number());
        let fence = granted.wrapping_mul(1000).wrapping_add(rest.signed());
        let deadline = at.wrapping_add(rest.signed());
        let (ttl, token) = (rest.number(), rest.text());
        let (mut count, mut delay, mut ephemeral, mut label) = (1, 0, 0, Vec::new());
        if ttl % 2 == 1 {
            (count, delay, ephemeral, label) = (rest.number(), rest.number(), rest.byte(), rest.text());
        }
        HoldLayout { fence, deadline, granted, ttl: ttl / 2, count, delay, ephemeral, label, token }
    }

    fn bytes(&self, at: u64) -> Vec<u8> {
        let has_extras = (self.count, self.delay, self.ephemeral, &self.label[..]) != (1, 0, 0, b"");
        let numbers = [
            at.wrapping_sub(self.granted),
            zigzag(self.fence.wrapping_sub(self.granted.wrapping_mul(1000))),
            zigzag(self.deadline.wrapping_sub(at)),
            self.ttl * 2 + u64::from(has_extras),
        ];
        let mut out = numbers.map(leb128).concat();
        out.push(self.token.len() as u8);
        out.extend(&self.token);
        if has_extras {
            out.extend([self.count, self.delay].map(leb128).concat());
            out.extend([self.ephemeral, self.label.len() as u8]);
            out.extend(&self.label);
        }
        out
    }
}

/// Encodes a signed number as an unsigned one (zigzag).
fn zigzag(number: u64) -> u64 {
    if number >> 63 == 0 { number * 2 } else { !number * 2 + 1 }
}

fn leb128(mut number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while number > 0x7f {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
    out
}

/// The bytes that are not parsed yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken
    }

    fn byte(&mut self) -> u8 {
        self.take(1)[0]
    }

    fn text(&mut self) -> Vec<u8> {
        let len = self.byte();
        self.take(len.into()).to_vec()
    }

    fn six_bytes(&mut self) -> u64 {
        self.take(6).iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn signed(&mut self) -> u64 {
        let number = self.number();
        if number.is_multiple_of(2) { number / 2 } else { !(number / 2) }
    }

    fn number(&mut self) -> u64 {
        let len = 1 + self.0.iter().take_while(|byte| **byte > 0x7f).count();
        self.take(len).iter().rev().fold(0, |number, byte| number << 7 | u64::from(byte & 0x7f))
    }
}
