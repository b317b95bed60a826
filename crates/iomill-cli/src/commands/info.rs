//! `iomill info`: the array and its drives.

use crate::human;
use iomill::{DriveInfo, NodeInfo};
use serde_json::{Value, json};

use crate::console::Answer;
use crate::context::Context;
use crate::failure::Result;
use crate::table::Table;

pub fn run(context: &Context<'_>) -> Result<Answer> {
    let info = context.peek()?.info()?;
    context.note(info.notices.iter().cloned());
    let mut table = Table::new(&[
        ">drive",
        "~/path",
        "?>weight",
        "engine",
        "?>depth",
        "?I/O",
        "file system",
        "?~ device",
        "?>node",
        ">small files",
        ">ready",
        ">free",
        ">size",
    ]);
    for drive in &info.drives {
        table.row(cells(drive));
    }
    let mut text = format!("array {}, epoch {}\nfiles {}\n{}", info.id, info.epoch, info.files, table.render());
    if info.nodes.len() > 1 {
        let mut table = Table::new(&[">node", "~,CPUs", "caches", "~,drives"]);
        for node in &info.nodes {
            let caches = if node.caches { "yes" } else { "no" };
            table.row([node.id.to_string(), listed(&node.cpus), caches.to_owned(), listed(&node.drives)]);
        }
        text = format!("{text}\n{}", table.render());
    }
    let drives: Vec<Value> = info.drives.iter().map(drive_document).collect();
    let nodes: Vec<Value> = info.nodes.iter().map(node_document).collect();
    let document = json!({
        "id": info.id, "epoch": info.epoch, "files": info.files, "drive_threads": info.drive_threads, "plug": info.plug,
        "drives": drives, "nodes": nodes
    });
    Ok(Answer::new(text, document))
}

fn cells(drive: &DriveInfo) -> [String; 13] {
    let ground = &drive.ground;
    let io = if drive.direct { "direct" } else { "buffered" };
    [
        drive.index.to_string(),
        human::printable(&drive.path.display().to_string()),
        drive.weight.to_string(),
        drive.engine.to_string(),
        drive.depth.to_string(),
        io.to_owned(),
        ground.file_system.clone(),
        if ground.device.is_empty() { "?".to_owned() } else { ground.device.clone() },
        ground.node.map_or_else(|| "-".to_owned(), |node| node.to_string()),
        human::size(drive.small.used_bytes),
        human::size(drive.small.ready_bytes),
        human::size(ground.free_bytes),
        human::size(ground.total_bytes),
    ]
}

fn listed<T: ToString>(numbers: &[T]) -> String {
    if numbers.is_empty() {
        return "-".to_owned();
    }
    numbers.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

fn node_document(node: &NodeInfo) -> Value {
    json!({ "id": node.id, "cpus": node.cpus, "caches": node.caches, "drives": node.drives })
}

/// A drive in JSON documents.
pub fn drive_document(drive: &DriveInfo) -> Value {
    json!({
        "index": drive.index,
        "path": drive.path.display().to_string(),
        "id": drive.id,
        "weight": drive.weight,
        "engine": drive.engine.to_string(),
        "depth": drive.depth,
        "direct": drive.direct,
        "file_system": drive.ground.file_system,
        "device": drive.ground.device,
        "node": drive.ground.node,
        "total_bytes": drive.ground.total_bytes,
        "free_bytes": drive.ground.free_bytes,
        "small_used_bytes": drive.small.used_bytes,
        "small_ready_bytes": drive.small.ready_bytes,
        "small_given_back_bytes": drive.small.given_back_bytes,
    })
}
