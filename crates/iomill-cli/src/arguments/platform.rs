//! The arguments of commands that examine the machine.

use std::path::PathBuf;

use clap::Args;

use super::values::{file, seconds, size};
use crate::tune::findings::{Coalescing, NAMES};

/// Arguments of `tune`.
#[derive(Debug, Args)]
pub struct Tune {
    /// Drives (`nvme0n1`, `/dev/sda`), or files and directories on them [default: the array's drives; without an array,
    /// all drives]
    #[arg(value_name = "DRIVE")]
    pub drives: Vec<PathBuf>,
    /// Change the settings that should be changed; the old values are saved first. Takes root
    #[arg(long)]
    pub apply: bool,
    /// Put back exactly the values from before the first --apply or --persist
    #[arg(long, conflicts_with_all = ["apply", "persist", "drives", "only", "coalesce", "record"])]
    pub undo: bool,
    /// Write files for udev, sysctl and tmpfiles that keep the settings over a restart
    #[arg(long)]
    pub persist: bool,
    /// Where --persist writes; required with --root
    #[arg(long, value_name = "DIR", default_value = crate::tune::persist::DIRECTORY, requires = "persist")]
    pub dir: PathBuf,
    /// Where the old values are saved; required with --root [default: /var/lib/iomill/tune.json; without root
    /// $XDG_STATE_HOME/iomill/tune.json]
    #[arg(long, value_name = "FILE", value_parser = file())]
    pub state: Option<PathBuf>,
    /// Look only at these settings, such as `scheduler,nomerges`
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(NAMES))]
    pub only: Vec<String>,
    /// Have NVMe drives interrupt only after this many completions or this time, such as `8,100us`; `1,0us` is an
    /// interrupt for each
    #[arg(long, value_name = "N,TIME", value_parser = coalescing)]
    pub coalesce: Option<Coalescing>,
    /// Also show what is good already
    #[arg(long)]
    pub all: bool,
    /// Look at a recorded machine, unpacked into a directory, instead of this one
    #[arg(long, value_name = "DIR", default_value = iomill_platform::tree::MACHINE)]
    pub root: PathBuf,
    /// Write everything that was read of the machine into a file, for a bug report; `iomill tune --unpack` makes a
    /// directory of it
    #[arg(long, value_name = "FILE", value_parser = file())]
    pub record: Option<PathBuf>,
    /// Unpack a recorded machine into the directory of --root, create that directory, and look at it
    #[arg(long, value_name = "FILE", value_parser = file(), requires = "root")]
    pub unpack: Option<PathBuf>,
}

/// Arguments of `probe`.
#[derive(Debug, Args)]
pub struct Probe {
    /// Directories, one on each drive to probe, or files: of a file its directory is taken [default: the array's
    /// drives]
    #[arg(value_name = "PLACE")]
    pub places: Vec<PathBuf>,
    /// Length of the file that is made on each drive and removed afterwards; a file larger than a drive's own cache
    /// shows more. A small array that is also made there takes at most 64MiB of each drive
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = size)]
    pub size: u64,
    /// Length of each of about eighty runs, 0.1 to 600
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = seconds)]
    pub seconds: f64,
    /// The most threads that read at the same time [default: one for each CPU that may be used]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Also read this block device directly. It is opened for reading only, and refused while it is in use. Repeat it
    /// for more
    #[arg(long, value_name = "DEVICE")]
    pub raw: Vec<PathBuf>,
    /// Write the best settings of the array's drives into this file, for --profile of other commands; an old profile is
    /// replaced
    #[arg(long, value_name = "FILE", help_heading = "Global options")]
    pub profile: Option<PathBuf>,
    /// Also write a page with charts into this file
    #[arg(long, value_name = "FILE", value_parser = file())]
    pub html: Option<PathBuf>,
    /// Write the results into this file as one JSON document. Without FILE, or with `-`, print it instead of the tables
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", help_heading = "Global options")]
    pub json: Option<PathBuf>,
}

fn coalescing(text: &str) -> Result<Coalescing, String> {
    let wrong =
        || "give completions from 1 to 256 and a time in steps of 100us up to 25500us, such as `8,100us`".to_owned();
    let (completions, time) = text.split_once(',').ok_or_else(wrong)?;
    let completions = completions.trim().parse().ok().filter(|count| (1..=256).contains(count)).ok_or_else(wrong)?;
    let time = time.trim().strip_suffix("us").and_then(|time| time.parse::<u32>().ok()).ok_or_else(wrong)?;
    let steps = u8::try_from(time / 100).ok().filter(|_| time % 100 == 0).ok_or_else(wrong)?;
    Ok(Coalescing { completions, time_100us: steps })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coalescing_has_bounds() {
        assert_eq!(coalescing("8,100us").unwrap(), Coalescing { completions: 8, time_100us: 1 });
        assert_eq!(coalescing("256,25500us").unwrap(), Coalescing { completions: 256, time_100us: 255 });
        assert_eq!(coalescing("1,0us").unwrap(), Coalescing { completions: 1, time_100us: 0 });
        for bad in ["", "8", "8,100", "0,100us", "257,100us", "8,50us", "8,25600us", "8,-1us", "x,100us"] {
            assert!(coalescing(bad).unwrap_err().contains("8,100us"), "{bad}");
        }
    }
}
