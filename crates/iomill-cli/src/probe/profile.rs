//! Makes a profile of the array's drives from the figures, as a text that [`iomill::Profile`] reads.
//!
//! Goals: measured settings only, with their figures as comments; a text that people can read and change.
//! Non-goals: drives that belong to no array; they have no id.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use iomill::catalog::{WEIGHT_MAX, parse_label};
use iomill::drive::DEPTH_MAX;
use iomill::{Error, Result};

use crate::human;

use super::figures::Figures;

/// Maximum length of a label; real ones are shorter.
const LABEL_BYTES_MAX: u64 = 4 << 20;

/// A profile that is to be written. `None` is a line that the text lacks.
#[derive(Debug, Default)]
pub struct NewProfile {
    drive_threads: Option<bool>,
    drives: Vec<NewDrive>,
    /// Lines at the head of the text.
    comment: Vec<String>,
}

/// One drive of a [`NewProfile`].
#[derive(Debug)]
struct NewDrive {
    id: String,
    path: PathBuf,
    depth: Option<u32>,
    weight: Option<u32>,
    /// Lines above the drive.
    comment: Vec<String>,
}

/// The id of the drive in a directory, if it is a drive of an array.
pub fn id_of(place: &Path) -> Result<Option<String>> {
    use io::Read;
    let path = place.join("iomill/label");
    let file = match fs::File::open(&path) {
        Ok(file) => file,
        // A file `iomill`, such as the program itself, makes no drive of a directory.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::PermissionDenied
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(Error::io("open", path, error)),
    };
    let mut bytes = Vec::new();
    file.take(LABEL_BYTES_MAX).read_to_end(&mut bytes).map_err(|e| Error::io("read", &path, e))?;
    let label = parse_label(&bytes).map_err(|why| Error::damaged(path, why.to_string()))?;
    Ok(Some(label.drive.to_string()))
}

/// The profile of those drives that belong to an array. An error if no drive does.
pub fn of(figures: &Figures) -> Result<NewProfile> {
    let mut drives = Vec::new();
    for (drive, weight) in figures.drives.iter().zip(&figures.weights) {
        let Some(id) = &drive.id else { continue };
        let best = drive.depths.iter().find(|point| point.depth == drive.best_depth);
        let comment = best.map(|best| {
            format!(
                "{} reads of 4 KiB a second with {} in flight, {} with {}; a lone one takes {}",
                human::count(best.iops),
                best.depth,
                human::count(drive.alone.iops),
                drive.alone.depth,
                human::time_us(drive.latency.p50_us)
            )
        });
        drives.push(NewDrive {
            id: id.clone(),
            path: drive.path.clone(),
            depth: Some(drive.best_depth),
            weight: Some(*weight),
            comment: comment.into_iter().collect(),
        });
    }
    if drives.is_empty() {
        return Err(Error::invalid(
            "a profile",
            "none of these directories is a drive of an array, so they have no ids; make an array of them with `iomill init`",
        ));
    }
    let mut comment = vec![format!("Measured on {}", figures.machine.line())];
    comment.extend(figures.verdict.iter().cloned());
    let drive_threads = figures.served.as_ref().map(|served| served.drive_threads);
    Ok(NewProfile { drive_threads, drives, comment })
}

impl NewProfile {
    /// The file's text.
    pub fn text(&self) -> String {
        let mut text = String::from(
            "# How iomill serves the drives of an array. `iomill --profile FILE ...` and `ArrayOptions::profile` read it.\n\
            # Options take precedence. A line that is removed leaves its value as it is without a profile.\n",
        );
        let comments = |text: &mut String, lines: &[String]| {
            for line in lines.iter().flat_map(|line| line.lines()) {
                text.push_str(&format!("# {}\n", line.replace(char::is_control, " ")));
            }
        };
        comments(&mut text, &self.comment);
        text.push_str("format = 1\n");
        if let Some(drive_threads) = self.drive_threads {
            text.push_str(&format!(
                "\n# Whether each drive has a thread that does its I/O. Without them each calling thread does its own.\n\
                 drive_threads = {drive_threads}\n"
            ));
        }
        if !self.drives.is_empty() {
            text.push_str(&format!(
                "\n# Each drive is known by its id. depth: most I/Os in flight, 1 to {DEPTH_MAX}. weight: its share in new files with the\n\
                 # hash layout, 1 to {WEIGHT_MAX}; it counts if every drive of the array has one. path: where the drive was.\n"
            ));
        }
        for drive in &self.drives {
            text.push_str("\n[[drive]]\n");
            comments(&mut text, &drive.comment);
            let quoted = |value: &str| toml::Value::String(value.to_owned()).to_string();
            text.push_str(&format!("id = {}\n", quoted(&drive.id)));
            text.push_str(&format!("path = {}\n", quoted(&drive.path.to_string_lossy())));
            for (key, value) in [("depth", drive.depth), ("weight", drive.weight)] {
                if let Some(value) = value {
                    text.push_str(&format!("{key} = {value}\n"));
                }
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::verdict::tests::figures;
    use super::*;

    #[test]
    fn the_profile_says_what_was_measured() {
        let mut figures = figures([2e5, 4e5], 5.5e5, 1.5);
        assert!(of(&figures).unwrap_err().to_string().contains("iomill init"));
        figures.drives[1].id = Some("000102030405060708090a0b0c0d0eff".to_owned());
        figures.verdict = vec!["the drives are the limit".to_owned()];
        let text = of(&figures).unwrap().text();
        assert!(text.contains("# the drives are the limit\n") && text.contains("depth = 16\nweight = 20\n"), "{text}");
        assert_eq!(text.matches("[[drive]]").count(), 1, "{text}");
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let read = |profile: &NewProfile| {
            let path = dir.path().join("p.toml");
            fs::write(&path, profile.text()).unwrap();
            format!("{:?}", iomill::Profile::read(path).unwrap())
        };
        let drive = |last: &str, weight| NewDrive {
            id: format!("000102030405060708090a0b0c0d0e{last}"),
            path: "/mnt/\"ssd\" 0".into(),
            depth: Some(DEPTH_MAX),
            weight,
            comment: vec!["95% of 400k".to_owned()],
        };
        let profile = NewProfile {
            drive_threads: Some(true),
            drives: vec![drive("ff", Some(WEIGHT_MAX)), drive("ee", None)],
            comment: vec!["two lines\nformat = 7 \u{1b}[2J".to_owned()],
        };
        let text = profile.text();
        assert!(text.contains("# 95% of 400k\n") && text.contains("# format = 7  [2J\n"), "{text}");
        let told = read(&profile);
        for part in ["0d0eff", "0d0eee", r#"path: "/mnt/\"ssd\" 0""#, "drive_threads: Some(true)", "weight: None"] {
            assert!(told.contains(part), "{part} is not in {told}");
        }
        let both = [format!("depth: Some({DEPTH_MAX})"), format!("weight: Some({WEIGHT_MAX})")];
        assert!(both.iter().all(|part| told.contains(part)), "{told}");
        assert!(read(&NewProfile::default()).contains("drives: []"));
    }

    #[test]
    fn a_directory_is_a_drive_by_its_label() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        assert_eq!(id_of(dir.path()).unwrap(), None);
        // Seen to fail where the program lies in the directory.
        fs::write(dir.path().join("iomill"), "program").unwrap();
        assert_eq!(id_of(dir.path()).unwrap(), None);
        fs::remove_file(dir.path().join("iomill")).unwrap();
        let array = iomill::Array::create([dir.path()]).unwrap();
        let id = array.info().unwrap().drives[0].id.clone();
        array.close().unwrap();
        assert_eq!(id_of(dir.path()).unwrap(), Some(id));
        fs::write(dir.path().join("iomill/label"), "x").unwrap();
        assert!(id_of(dir.path()).unwrap_err().to_string().contains("label"));
    }
}
