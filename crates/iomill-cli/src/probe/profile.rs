//! Makes a profile of the array's drives from the figures.
//!
//! Goals: measured settings only, with their figures as comments.
//! Non-goals: drives that belong to no array; they have no id.

use std::fs;
use std::io;
use std::path::Path;

use crate::human;
use iomill::catalog::parse_label;
use iomill::{Error, Profile, ProfileDrive, Result};

use super::Figures;

/// Maximum length of a label; real ones are shorter.
const LABEL_BYTES_MAX: u64 = 4 << 20;

/// The id of the drive in a directory, if it is a drive of an array.
pub fn id_of(place: &Path) -> Result<Option<String>> {
    use io::Read;
    let path = place.join("iomill/label");
    let file = match fs::File::open(&path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
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
pub fn of(figures: &Figures) -> Result<Profile> {
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
        let mut profiled = ProfileDrive::new(id.clone());
        profiled.path = drive.path.clone();
        profiled.depth = Some(drive.best_depth);
        profiled.weight = Some(*weight);
        profiled.comment = comment.into_iter().collect();
        drives.push(profiled);
    }
    if drives.is_empty() {
        return Err(Error::invalid(
            "a profile",
            "none of these directories is a drive of an array, so they have no ids; make an array of them with `iomill init`",
        ));
    }
    let mut comment = vec![format!("Measured on {}", figures.machine.line())];
    comment.extend(figures.verdict.iter().cloned());
    let mut profile = Profile::default();
    profile.drive_threads = figures.served.as_ref().map(|served| served.drive_threads);
    profile.drives = drives;
    profile.comment = comment;
    Ok(profile)
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
        let profile = of(&figures).unwrap();
        assert_eq!((profile.drives.len(), profile.drives[0].depth, profile.drives[0].weight), (1, Some(16), Some(20)));
        let text = profile.text();
        assert!(text.contains("# the drives are the limit\n") && text.contains("depth = 16\nweight = 20\n"), "{text}");
        Profile::parse(text.as_bytes(), Path::new("p")).unwrap();
    }

    #[test]
    fn a_directory_is_a_drive_by_its_label() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        assert_eq!(id_of(dir.path()).unwrap(), None);
        let array = iomill::Array::create([dir.path()]).unwrap();
        let id = array.info().unwrap().drives[0].id.clone();
        array.close().unwrap();
        assert_eq!(id_of(dir.path()).unwrap(), Some(id));
        fs::write(dir.path().join("iomill/label"), "x").unwrap();
        assert!(id_of(dir.path()).unwrap_err().to_string().contains("label"));
    }
}
