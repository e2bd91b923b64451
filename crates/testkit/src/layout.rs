//! The bytes of a lock, or of a change of one, taken apart by hand: so their layout cannot change unnoticed.

/// Any value may stand in it, also those that no module writes.
#[derive(Clone)]
pub struct Layout {
    pub version: u8,
    pub flags: u8,
    pub mode: u8,
    pub zero: u8,
    pub permits: u64,
    pub boot: u64,
    pub offset: u64,
    pub at: u64,
    pub delay_until: u64,
    /// How many are said to follow.
    pub counts: (u64, u64),
    pub dropped: Vec<Vec<u8>>,
    pub put: Vec<HoldLayout>,
}

#[derive(Clone)]
pub struct HoldLayout {
    pub fence: u64,
    pub deadline: u64,
    pub granted: u64,
    pub ttl: u64,
    pub count: u64,
    pub delay: u64,
    pub ephemeral: u8,
    pub token: Vec<u8>,
    pub label: Vec<u8>,
}

impl Layout {
    /// Panics where the bytes end early, or go on.
    #[track_caller]
    pub fn of(bytes: &[u8]) -> Layout {
        let mut rest = Rest(bytes);
        let [version, flags, mode, zero] = [rest.byte(), rest.byte(), rest.byte(), rest.byte()];
        let permits = rest.number();
        let boot = u64::from_le_bytes(rest.take(8).try_into().expect("8 bytes"));
        let (offset, at, delay_until) = (rest.number(), rest.number(), rest.number());
        let counts = (rest.number(), rest.number());
        let dropped = (0..counts.0).map(|_| rest.text()).collect();
        let put = (0..counts.1).map(|_| HoldLayout::of(&mut rest)).collect();
        assert!(rest.0.is_empty(), "left over: {}", rest.0.escape_ascii());
        let layout = Layout {
            version,
            flags,
            mode,
            zero,
            permits,
            boot,
            offset,
            at,
            delay_until,
            counts,
            dropped,
            put,
        };
        assert_eq!(layout.bytes(), bytes, "numbers are as short as they can be");
        layout
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = vec![self.version, self.flags, self.mode, self.zero];
        out.extend(leb128(self.permits));
        out.extend(self.boot.to_le_bytes());
        let numbers = [self.offset, self.at, self.delay_until, self.counts.0, self.counts.1];
        out.extend(numbers.map(leb128).concat());
        for token in &self.dropped {
            out.push(token.len() as u8);
            out.extend(token);
        }
        for hold in &self.put {
            let numbers = [hold.fence, hold.deadline, hold.granted, hold.ttl, hold.count, hold.delay];
            out.extend(numbers.map(leb128).concat());
            out.extend([hold.ephemeral, hold.token.len() as u8, hold.label.len() as u8]);
            out.extend(&hold.token);
            out.extend(&hold.label);
        }
        out
    }
}

impl HoldLayout {
    fn of(rest: &mut Rest<'_>) -> HoldLayout {
        let [fence, deadline, granted, ttl, count, delay] = std::array::from_fn(|_| rest.number());
        let [ephemeral, token, label] = std::array::from_fn(|_| rest.byte());
        let [token, label] = [token, label].map(|len| rest.take(len.into()).to_vec());
        HoldLayout { fence, deadline, granted, ttl, count, delay, ephemeral, token, label }
    }
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

    fn number(&mut self) -> u64 {
        let len = 1 + self.0.iter().take_while(|byte| **byte > 0x7f).count();
        self.take(len).iter().rev().fold(0, |number, byte| number << 7 | u64::from(byte & 0x7f))
    }
}
