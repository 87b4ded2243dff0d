//! `roiflow man-pages`: writes one manual page for the command `roiflow`, and one for each of its subcommands. `make install`
//! calls it.

use std::path::PathBuf;

use anyhow::Context;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The folder to write the pages into
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

pub(super) fn write(args: &Args, command: clap::Command) -> anyhow::Result<()> {
    let shown = args.folder.display();
    std::fs::create_dir_all(&args.folder).with_context(|| format!("cannot make the folder `{shown}`"))?;
    clap_mangen::generate_to(command, &args.folder).with_context(|| format!("cannot write manual pages into `{shown}`"))
}
