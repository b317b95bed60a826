//! `iomill info`: the array and its drives.

use iomill::DriveInfo;
use iomill_bench::human;
use serde_json::{Value, json};

use crate::console::Answer;
use crate::context::Context;
use crate::failure::Result;
use crate::table::Table;

pub fn run(context: &Context<'_>) -> Result<Answer> {
    let info = context.peek()?.info()?;
    context.note(info.notices.iter().cloned());
    let mut table =
        Table::new(&[">drive", "path", ">weight", "engine", "I/O", "file system", "device", ">node", ">free", ">size"]);
    for drive in &info.drives {
        table.row(cells(drive));
    }
    let text = format!("array {}, epoch {}\nfiles {}\n{}", info.id, info.epoch, info.files, table.render());
    let drives: Vec<Value> = info.drives.iter().map(drive_document).collect();
    let document = json!({ "id": info.id, "epoch": info.epoch, "files": info.files, "drives": drives });
    Ok(Answer::new(text, document))
}

fn cells(drive: &DriveInfo) -> [String; 10] {
    let ground = &drive.ground;
    let io = if drive.direct { "direct" } else { "buffered" };
    [
        drive.index.to_string(),
        drive.path.display().to_string(),
        drive.weight.to_string(),
        drive.engine.to_string(),
        io.to_owned(),
        ground.file_system.clone(),
        if ground.device.is_empty() { "?".to_owned() } else { ground.device.clone() },
        ground.node.map_or_else(|| "-".to_owned(), |node| node.to_string()),
        human::size(ground.free_bytes),
        human::size(ground.total_bytes),
    ]
}

/// A drive, for programs.
pub fn drive_document(drive: &DriveInfo) -> Value {
    json!({
        "index": drive.index,
        "path": drive.path.display().to_string(),
        "id": drive.id,
        "weight": drive.weight,
        "engine": drive.engine.to_string(),
        "direct": drive.direct,
        "file_system": drive.ground.file_system,
        "device": drive.ground.device,
        "node": drive.ground.node,
        "total_bytes": drive.ground.total_bytes,
        "free_bytes": drive.ground.free_bytes,
    })
}
