//! Counts the data that a demuxer of MPEG-TS stores: the elementary streams are interleaved, and each may send a packet without an end.

use std::collections::HashMap;

/// First byte of each packet of MPEG-TS.
const SYNC: u8 = 0x47;
/// Sizes of such packets: alone, with a time stamp, and with two kinds of error correction.
const SIZES: [usize; 4] = [188, 192, 204, 208];
const SIZE: usize = SIZES[0];

/// The incomplete packets (PES) of the streams.
#[derive(Debug, Default)]
pub(super) struct Packets {
    /// Bytes that are not read yet.
    rest: Vec<u8>,
    /// Size of the packets; 0 if it is not known.
    size: usize,
    /// Bytes of the incomplete packet of each stream, by the stream's number (PID).
    n_stored: HashMap<u16, u64>,
}

impl Packets {
    /// Takes the next bytes. Returns the number of bytes in incomplete packets of all streams.
    pub(super) fn read(&mut self, bytes: &[u8]) -> u64 {
        self.rest.extend_from_slice(bytes);
        let mut at = 0;
        while self.rest.len() >= at + self.size.max(SIZE) {
            if self.size == 0 || self.rest[at] != SYNC {
                let Some((offset, size)) = synchronized(&self.rest[at..]) else {
                    at = self.rest.len().saturating_sub(2 * SIZES[3]).max(at);
                    break;
                };
                (at, self.size) = (at + offset, size);
            }
            self.count([self.rest[at + 1], self.rest[at + 2], self.rest[at + 3]]);
            at += self.size;
        }
        self.rest.drain(..at);
        self.n_stored.values().sum()
    }

    /// Counts the payload of a packet with this header.
    fn count(&mut self, header: [u8; 3]) {
        let number = u16::from_be_bytes([header[0] & 0x1f, header[1]]);
        let (is_begin, has_payload) = (header[0] & 0x40 != 0, header[2] & 0x10 != 0);
        if is_begin && has_payload {
            self.n_stored.insert(number, SIZE as u64);
        } else if has_payload && let Some(n_bytes) = self.n_stored.get_mut(&number) {
            // A demuxer does not store data before the first begin.
            *n_bytes += SIZE as u64;
        }
    }
}

/// Returns the offset and the size of the first packet that two further packets follow.
fn synchronized(bytes: &[u8]) -> Option<(usize, usize)> {
    let is_sync = |at: usize| bytes.get(at) == Some(&SYNC);
    let size_at = |at: usize| SIZES.into_iter().find(|size| is_sync(at + size) && is_sync(at + 2 * size));
    (0..bytes.len()).filter(|at| is_sync(*at)).find_map(|at| Some((at, size_at(at)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(number: u16, is_begin: bool) -> [u8; SIZE] {
        let mut packet = [0xaa; SIZE];
        let [high, low] = number.to_be_bytes();
        packet[..4].copy_from_slice(&[SYNC, high | u8::from(is_begin) << 6, low, 0x10]);
        packet
    }

    /// Returns packets of a stream that begins again and again, and of a stream that never ends.
    fn stream(n: usize) -> Vec<[u8; SIZE]> {
        let begin = [packet(2, true)].into_iter();
        begin.chain((0..n).flat_map(|_| [packet(1, true), packet(1, false), packet(2, false), packet(0x1fff, false)])).collect()
    }

    #[test]
    fn only_incomplete_packets_count() {
        let expected = |n: u64| (1 + n + 2) * SIZE as u64;
        for size in SIZES {
            let bytes: Vec<u8> = stream(100).iter().flat_map(|packet| [&packet[..], &vec![0; size - SIZE]].concat()).collect();
            for n_bytes in [1, 100, 188, 4096, bytes.len()] {
                let mut packets = Packets::default();
                let stored = bytes.chunks(n_bytes).map(|piece| packets.read(piece)).last();
                assert_eq!(stored, Some(expected(100)), "{size} {n_bytes}");
                assert!(packets.rest.len() < 3 * SIZES[3]);
            }
        }
    }

    #[test]
    fn count_goes_on_after_damage() {
        let mut bytes = stream(10).concat();
        bytes.drain(1000..1100);
        bytes.extend(vec![7; 1000]);
        bytes.extend(stream(10)[1..].concat());
        let stored = Packets::default().read(&bytes);
        assert!((18..=23).contains(&(stored / SIZE as u64)), "{stored}");
        assert_eq!(Packets::default().read(&[SYNC; 100]), 0);
        assert_eq!(Packets::default().read(&vec![0; 1 << 20]), 0);
    }
}
