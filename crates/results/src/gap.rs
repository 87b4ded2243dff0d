//! Missing results between two machines that have processed the same stream.

/// The epoch in the IDs of results is the number of an assignment times this, plus a number that counts starts of the stream.
pub const EPOCHS_PER_ASSIGNMENT: u64 = 1_000_000;

/// Missing results before the first result of an assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// Name of the stream.
    pub stream: String,
    /// The assignment that begins after the gap: the property `assignment` of `roipublish`.
    pub assignment: u64,
    /// Why results are missing, for people.
    pub reason: String,
    /// The last result before the gap; `None` if it is not known.
    pub last: Option<LastResult>,
}

/// A result that another machine has published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastResult {
    /// Epoch of its message ID.
    pub epoch: u64,
    /// Number of its frame.
    pub frame: u64,
    /// Its time of day, as in the result.
    pub time: Option<String>,
}
