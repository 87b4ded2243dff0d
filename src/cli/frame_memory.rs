//! `--frame-memory`: passes the pixels of frames to the Python package, which has started this command. The protocol is in
//! [`crate::elements::publish::FrameMemory`].

use std::fs::File;
use std::io::{self, BufReader};
use std::thread;

use crate::elements::publish::FrameMemory;
use crate::pipeline::{Error, Result};
use crate::vision::ChannelOrder;

/// An inherited file descriptor and the order of colors, such as `3:rgb`.
#[derive(Debug, Clone, Copy)]
pub(super) struct FrameMemoryArg {
    descriptor: u32,
    color: ChannelOrder,
}

impl FrameMemoryArg {
    pub(super) fn parse(text: &str) -> std::result::Result<Self, String> {
        let parsed = text.split_once(':').and_then(|(descriptor, color)| {
            let color = match color {
                "rgb" => ChannelOrder::Rgb,
                "bgr" => ChannelOrder::Bgr,
                _ => return None,
            };
            Some(Self { descriptor: descriptor.parse().ok()?, color })
        });
        parsed.ok_or_else(|| format!("expected the number of an open file and rgb or bgr, such as 3:rgb, got `{text}`"))
    }

    /// Opens the shared memory. Starts a thread that reads from standard input which frames the Python package still uses.
    ///
    /// # Errors
    /// Returns `Failed` if the descriptor is not an open file, or no thread can be started.
    pub(super) fn open(self) -> Result<FrameMemory> {
        let path = format!("/proc/self/fd/{}", self.descriptor);
        let failed = |error: io::Error| Error::failed(format!("--frame-memory: cannot open {path}: {error}"));
        let file = File::options().read(true).write(true).open(&path).map_err(failed)?;
        let memory = FrameMemory::new(file, self.color).map_err(failed)?;
        let follower = memory.clone();
        // The thread ends when the Python package closes its end of the pipe, or when this process ends.
        let follow = move || follower.follow(BufReader::new(io::stdin()));
        thread::Builder::new().name("roiflow-frames".to_owned()).spawn(follow).map_err(failed)?;
        Ok(memory)
    }
}
