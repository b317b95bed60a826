//! `iomill init`: directories become the drives of a new array.

use std::collections::BTreeMap;

use iomill::{CreateOptions, DriveInfo};
use serde_json::json;

use super::info;
use crate::arguments::Init;
use crate::console::Answer;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::human;

/// A note for each device that has several of the drives: they share its speed and its fate.
fn shared_devices(drives: &[DriveInfo]) -> Vec<String> {
    let mut by_device: BTreeMap<u64, Vec<&DriveInfo>> = BTreeMap::new();
    for drive in drives {
        by_device.entry(drive.ground.device_id).or_default().push(drive);
    }
    let note = |drives: &Vec<&DriveInfo>| {
        let paths: Vec<String> = drives.iter().map(|drive| drive.path.display().to_string()).collect();
        let device = match drives[0].ground.device.as_str() {
            "" => "one device".to_owned(),
            name => format!("one device, {name}"),
        };
        let why = "together they are as fast as one, and are lost together; an array of several SSDs has one directory on each";
        format!("{} are on {device}: {why}", paths.join(" and "))
    };
    by_device.values().filter(|drives| drives.len() > 1).map(note).collect()
}

pub fn run(context: &Context<'_>, arguments: &Init) -> Result<Answer> {
    if !context.global.array.is_empty() {
        let why = "init makes a new array of the drives in its arguments; leave `-a` out";
        return Err(Failure::Usage(why.to_owned()));
    }
    let mut options = CreateOptions::new();
    if let Some(weights) = &arguments.weights {
        options = options.weights(weights.clone());
    }
    if let Some(copies) = arguments.copies {
        options = options.copies(usize::from(copies));
    }
    let array = context.options().create_with(&arguments.drives, &options)?;
    context.with(array, |array| {
        let info = array.info()?;
        context.note(shared_devices(&info.drives));
        let (count, first) = (info.drives.len(), human::printable(&info.drives[0].path.display().to_string()));
        let drives = if count == 1 { "drive" } else { "drives" };
        let text = format!("array {} of {count} {drives}; name it by any of them, as in `-a {first}`\n", info.id);
        let drives: Vec<_> = info.drives.iter().map(info::drive_document).collect();
        Ok(Answer::new(text, json!({ "id": info.id, "drives": drives })))
    })
}
