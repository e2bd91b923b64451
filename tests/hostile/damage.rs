//! Random damage to bytes.

use dlock_testkit::Random;

/// Numbers at which lengths, counts and deadlines often fail.
const NUMBERS: [u64; 10] =
    [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 1 << 53, i64::MAX as u64, u64::MAX];

/// Changes `bytes` at random, half of the changes near occurrences of `interesting`.
pub fn damage(bytes: &mut Vec<u8>, interesting: &[u8], random: &mut Random) {
    for _ in 0..1 + random.below(4) {
        let places: Vec<usize> = bytes
            .windows(interesting.len())
            .enumerate()
            .filter(|(_, window)| *window == interesting)
            .map(|(at, _)| at)
            .collect();
        let at = if places.is_empty() || random.once_in(2) {
            random.below(bytes.len() + 1)
        } else {
            // The numbers of a hold precede its token, its label follows it.
            (random.of(&places) + random.below(96)).saturating_sub(64).min(bytes.len())
        };
        change(bytes, at, random);
        if bytes.is_empty() {
            return;
        }
    }
}

fn change(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let end = (at + 1 + random.below(24)).min(bytes.len());
    match random.below(10) {
        // Most changes keep the length, so that enclosing lengths still fit.
        0..3 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        3..5 if at < bytes.len() => bytes[at] = random.below(256) as u8,
        5..7 => {
            let number = random.of(&NUMBERS).to_le_bytes();
            let size = [1, 2, 4, 8][random.below(4)].min(bytes.len() - at);
            bytes[at..at + size].copy_from_slice(&number[..size]);
        }
        7 => drop(bytes.drain(at..end)),
        8 => {
            let copy = bytes[at..end].to_vec();
            let to = random.below(bytes.len() + 1);
            bytes.splice(to..to, copy);
        }
        _ if random.once_in(4) => bytes.truncate(at),
        _ => {
            let noise: Vec<u8> = (0..random.below(16)).map(|_| random.below(256) as u8).collect();
            bytes.splice(at..at, noise);
        }
    }
}
