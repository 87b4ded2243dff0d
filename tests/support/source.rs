//! Numbers from bytes, for test cases of random tests and fuzzers.

/// A source of numbers: the bytes, then pseudorandom numbers derived from them (xorshift). So a few bytes give a large case.
pub struct Source<'a> {
    bytes: std::slice::Iter<'a, u8>,
    state: u64,
}

impl<'a> Source<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        let state = bytes.iter().fold(0xcbf2_9ce4_8422_2325, |state, &byte| (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        Self { bytes: bytes.iter(), state: state | 1 }
    }

    pub fn random(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state >> 11
    }

    pub fn below(&mut self, limit: usize) -> usize {
        let number = self.bytes.next().map_or_else(|| self.random() as usize, |&byte| usize::from(byte));
        number % limit.max(1)
    }

    pub fn fraction(&mut self) -> f32 {
        (self.random() % 1024) as f32 / 1024.0
    }

    /// Any value that a model can output.
    pub fn value(&mut self) -> f32 {
        const SPECIAL: [f32; 12] =
            [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, f32::MIN_POSITIVE, -0.0, 0.0, 1.0, -1.0, 0.5, 1e9];
        let number = self.random() as usize;
        if number.is_multiple_of(3) { SPECIAL[number / 3 % SPECIAL.len()] } else { f32::from_bits(number as u32) }
    }
}
