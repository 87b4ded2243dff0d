//! Reads just enough of H.264 to put it into an MP4 file: parameter sets, and the two ways in which a stream separates its units.
//!
//! H.264 consists of units. A camera usually separates them by start codes (ISO/IEC 14496-10, annex B). MP4 files have the length of each
//! unit in front of it instead, and the parameter sets in a separate configuration record (ISO/IEC 14496-15).

/// Types of units (ISO/IEC 14496-10, table 7-1).
const SEQUENCE_PARAMETERS: u8 = 7;
const PICTURE_PARAMETERS: u8 = 8;
const DELIMITER: u8 = 9;
/// Profiles that browsers decode: baseline, main, extended and high, all with 8 bits per sample and 4:2:0 chroma.
const PROFILES: [u8; 4] = [66, 77, 88, 100];

fn type_of(unit: &[u8]) -> u8 {
    unit.first().map_or(0, |head| head & 31)
}

/// Splits data with start codes into units.
fn units(data: &[u8]) -> Vec<&[u8]> {
    // Positions behind each start code 0, 0, 1.
    let begins: Vec<usize> = data.windows(3).enumerate().filter(|(_, bytes)| *bytes == [0, 0, 1]).map(|(at, _)| at + 3).collect();
    let ends = begins.iter().skip(1).map(|begin| begin - 3).chain([data.len()]);
    let cut = begins.iter().zip(ends).map(|(&begin, end)| &data[begin..end.max(begin)]);
    // Zeros before a start code belong to no unit; a unit never ends with a zero.
    cut.map(|unit| &unit[..unit.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)]).filter(|unit| !unit.is_empty()).collect()
}

/// Returns the configuration record of data with start codes; `None` if it has no parameter sets, or one whose length has no form in the
/// record.
pub(super) fn config(data: &[u8]) -> Option<Vec<u8>> {
    let all = units(data);
    let sequence = all.iter().find(|unit| type_of(unit) == SEQUENCE_PARAMETERS && unit.len() >= 4)?;
    let picture: Vec<&&[u8]> = all.iter().filter(|unit| type_of(unit) == PICTURE_PARAMETERS).collect();
    if picture.is_empty() {
        return None;
    }
    // Version 1; profile, compatibility and level; lengths of four bytes; one sequence parameter set.
    let mut record = vec![1, sequence[1], sequence[2], sequence[3], 0xff, 0xe1];
    let add = |record: &mut Vec<u8>, unit: &[u8]| {
        record.extend_from_slice(&u16::try_from(unit.len()).ok()?.to_be_bytes());
        record.extend_from_slice(unit);
        Some(())
    };
    add(&mut record, sequence)?;
    let n_pictures = picture.len().min(255);
    record.push(n_pictures as u8);
    picture[..n_pictures].iter().try_for_each(|unit| add(&mut record, unit))?;
    Some(record)
}

/// Replaces start codes by lengths of four bytes. Drops parameter sets and delimiters, which the configuration record replaces.
pub(super) fn with_lengths(data: &[u8]) -> Vec<u8> {
    let mut converted = Vec::with_capacity(data.len() + 16);
    for unit in units(data) {
        if !matches!(type_of(unit), SEQUENCE_PARAMETERS | PICTURE_PARAMETERS | DELIMITER) {
            converted.extend_from_slice(&(unit.len() as u32).to_be_bytes());
            converted.extend_from_slice(unit);
        }
    }
    converted
}

/// Whether browsers can decode video with this configuration record.
pub(super) fn is_playable(config: &[u8]) -> bool {
    config.get(1).is_some_and(|profile| PROFILES.contains(profile))
}

/// Returns the name of the codec for browsers, such as `avc1.42C01F` (RFC 6381).
pub(super) fn codec(config: &[u8]) -> String {
    let byte = |idx: usize| config.get(idx).copied().unwrap_or(0);
    format!("avc1.{:02X}{:02X}{:02X}", byte(1), byte(2), byte(3))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPS: [u8; 5] = [0x67, 0x42, 0xc0, 0x1f, 0xaa];
    const PPS: [u8; 3] = [0x68, 0xce, 0x01];
    const SLICE: [u8; 4] = [0x65, 1, 2, 3];

    fn with_start_codes() -> Vec<u8> {
        [&[0, 0, 0, 1, 9, 0x10, 0, 0, 0, 1][..], &SPS, &[0, 0, 1], &PPS, &[0, 0, 0, 1], &SLICE].concat()
    }

    #[test]
    fn start_codes_become_lengths_and_parameter_sets_a_record() {
        let data = with_start_codes();
        assert_eq!(with_lengths(&data), [&[0, 0, 0, 4][..], &SLICE].concat());
        let record = config(&data).unwrap();
        assert_eq!(record, [&[1, 0x42, 0xc0, 0x1f, 0xff, 0xe1, 0, 5][..], &SPS, &[1, 0, 3], &PPS].concat());
        assert!(is_playable(&record));
        assert_eq!(codec(&record), "avc1.42C01F");
    }

    #[test]
    fn parameter_set_that_is_too_long_has_no_record() {
        let long = |kind: u8, length: usize| [&[0, 0, 1, kind][..], &vec![1; length - 1]].concat();
        assert!(config(&[long(0x67, 65_535), long(0x68, 65_535)].concat()).is_some());
        assert_eq!(config(&[long(0x67, 65_536), long(0x68, 9)].concat()), None);
        assert_eq!(config(&[long(0x67, 9), long(0x68, 65_536)].concat()), None);
    }

    #[test]
    fn data_without_parameter_sets_has_no_record() {
        for data in [&[][..], &[0, 0, 1], &[0, 0, 1, 0x67, 1], &[0, 0, 0, 1, 0x65, 1, 2], &[1, 2, 3]] {
            assert_eq!(config(data), None, "{data:?}");
        }
        assert!(!is_playable(&[1, 110, 0, 31]), "ten bits per sample");
        assert!(!is_playable(&[]));
    }
}
