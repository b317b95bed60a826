//! `iomill tune`: shows which settings of this machine slow I/O down, and changes them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::tune::apply::{self, Change, Outcome, Undone};
use crate::tune::finding::{Finding, Verdict};
use crate::tune::findings::{self, Wishes};
use crate::tune::persist::{self, Plan};
use crate::tune::state::{self, Store};
use iomill::Error;
use iomill_platform::drives::{self, Drive, NoDrive, Transport};
use iomill_platform::machine::Machine;
use iomill_platform::record::Record;
use iomill_platform::tree::Tree;
use serde_json::{Value, json};

use crate::arguments::Tune;
use crate::console::Answer;
use crate::context::Context;
use crate::destination::check_report;
use crate::failure::{Failure, Result};

pub fn run(context: &Context<'_>, arguments: &Tune) -> Result<Answer> {
    let tree = tree(arguments)?;
    keeps_machines_apart(arguments, &tree)?;
    if let Some(file) = &arguments.record {
        check_report("--record", file)?;
    }
    if arguments.undo {
        return undo(context, arguments, &tree);
    }
    let machine = Machine::look(&tree);
    let drives = chosen_drives(context, arguments, &tree, &machine)?;
    if arguments.coalesce.is_some() && drives.iter().all(|drive| drive.transport != Transport::Nvme) {
        context.note(["--coalesce is for NVMe drives, and none of these is one".to_owned()]);
    }
    let wishes = Wishes { coalescing: arguments.coalesce };
    let mut found = findings::all(&tree, &machine, &drives, &wishes);
    if !arguments.only.is_empty() {
        found.retain(|finding| arguments.only.iter().any(|name| name == finding.what));
    }
    if let Some(file) = &arguments.record {
        fs::write(file, tree.take_record().to_string()).map_err(Failure::local("write", file))?;
    }
    context.note(tree.unreadable());
    let pending = apply::pending(&tree, &found);
    let mut changes = Vec::new();
    let mut written = Vec::new();
    if arguments.apply && !pending.is_empty() {
        changes = apply::apply(&tree, &pending, &store(arguments)?)?;
    }
    if arguments.persist {
        let plan = Plan::new(&tree, &drives, &found);
        written = plan.write(&arguments.dir, &persist::boot_of(&tree), &store(arguments)?)?;
        context.note(
            plan.not_kept
                .iter()
                .map(|path| format!("no file keeps {path} over a restart; run `iomill tune --apply` again after each")),
        );
    }
    let mut text = header(&machine, &drives);
    text.push_str(&report(&found, arguments.all));
    text.push_str(&aftermath(arguments, &found, pending.len(), &changes));
    text.extend(written.iter().map(|path| format!("wrote {}\n", path.display())));
    let document = json!({
        "drives": drives.iter().map(drive_document).collect::<Vec<_>>(),
        "findings": found.iter().map(finding_document).collect::<Vec<_>>(),
        "changes": changes.iter().map(change_document).collect::<Vec<_>>(),
        "written": written,
    });
    let mut answer = Answer::new(text, document);
    let refused = changes.iter().filter(|change| change.outcome != Outcome::Set).count();
    if refused > 0 {
        let all = changes.len();
        answer.failures.push(Failure::Unsound(format!(
            "the kernel refused {refused} of {all} settings, see above; `iomill tune --undo` puts the others back"
        )));
    }
    Ok(answer)
}

fn tree(arguments: &Tune) -> Result<Tree> {
    if let Some(file) = &arguments.unpack {
        if arguments.root == Path::new(iomill_platform::tree::MACHINE) {
            return Err(Failure::Usage("--unpack needs a directory: name an empty one with --root".to_owned()));
        }
        let text = fs::read_to_string(file).map_err(Failure::local("read", file))?;
        let record = Record::parse(&text).map_err(|why| iomill::Error::damaged(file.clone(), why))?;
        fs::create_dir_all(&arguments.root).map_err(Failure::local("create", &arguments.root))?;
        let is_empty = fs::read_dir(&arguments.root).map_err(Failure::local("list", &arguments.root))?.next().is_none();
        if !is_empty {
            let why = io::Error::new(
                io::ErrorKind::DirectoryNotEmpty,
                "the directory is not empty; name an empty one with --root",
            );
            return Err(Failure::local("unpack into", &arguments.root)(why));
        }
        record.unpack(&arguments.root).map_err(Failure::local("unpack into", &arguments.root))?;
    }
    let tree = Tree::at(&arguments.root).map_err(Failure::local("look into", &arguments.root))?;
    Ok(if arguments.record.is_some() { tree.recording() } else { tree })
}

/// A recorded machine needs its own places: the saved values and files of this machine must not be replaced or put back
/// for it.
fn keeps_machines_apart(arguments: &Tune, tree: &Tree) -> Result<()> {
    let what = match () {
        _ if tree.is_machine() => return Ok(()),
        _ if (arguments.apply || arguments.undo || arguments.persist) && arguments.state.is_none() => "--state FILE",
        _ if arguments.persist && arguments.dir == Path::new(persist::DIRECTORY) => "--dir DIR",
        _ => return Ok(()),
    };
    let why = format!(
        "{} is a recorded machine, and needs a place of its own for its data; name that with {what}",
        arguments.root.display()
    );
    Err(Failure::Usage(why))
}

fn state_path(arguments: &Tune) -> Result<PathBuf> {
    match &arguments.state {
        Some(path) => Ok(path.clone()),
        None => Ok(state::default_path()?),
    }
}

fn store(arguments: &Tune) -> Result<Store> {
    Ok(Store::open(&state_path(arguments)?)?)
}

/// The named drives; or else the array's; or else all.
fn chosen_drives(context: &Context<'_>, arguments: &Tune, tree: &Tree, machine: &Machine) -> Result<Vec<Drive>> {
    if !arguments.drives.is_empty() {
        return under(tree, machine, &arguments.drives);
    }
    // A recorded machine has no array that can be opened here.
    if tree.is_machine() && context.starts_if_named()?.is_some() {
        let info = context.peek()?.info()?;
        let paths: Vec<_> = info.drives.iter().map(|drive| drive.path.clone()).collect();
        return under(tree, machine, &paths);
    }
    Ok(drives::all(tree, machine))
}

fn under(tree: &Tree, machine: &Machine, paths: &[PathBuf]) -> Result<Vec<Drive>> {
    let found = drives::under(tree, machine, paths);
    Ok(found.map_err(|NoDrive { what, why }| Error::Tool { what, why })?)
}

fn header(machine: &Machine, drives: &[Drive]) -> String {
    let product = if machine.product.is_empty() { String::new() } else { format!("{}, ", machine.product) };
    let nodes = machine.nodes.len().max(1);
    let mut text = format!(
        "{product}Linux {}, {} CPUs, {nodes} {}\n",
        if machine.kernel.is_empty() { "?" } else { &machine.kernel },
        machine.online.len(),
        if nodes == 1 { "node" } else { "nodes" }
    );
    for drive in drives {
        let size = crate::human::size(drive.len_bytes);
        let mut parts = vec![drive.transport.name().to_owned(), size];
        if !drive.model.is_empty() {
            parts.insert(0, drive.model.clone());
        }
        parts.extend(drive.node.map(|node| format!("node {node}")));
        text.push_str(&format!("{}: {}\n", drive.name, parts.join(", ")));
    }
    if drives.is_empty() {
        text.push_str("no drives: no block device here is a drive of its own\n");
    }
    text
}

/// A paragraph for each finding: first the changes to make, then facts, and with `all` the good settings.
fn report(found: &[Finding], all: bool) -> String {
    let mut text = String::new();
    for verdict in [Verdict::Mend, Verdict::Advise, Verdict::Unknown, Verdict::Note, Verdict::Good] {
        if verdict == Verdict::Good && !all {
            continue;
        }
        let mut rest: Vec<&Finding> = found.iter().filter(|finding| finding.verdict == verdict).collect();
        while let Some(&finding) = rest.first() {
            // Equal findings of several drives become one paragraph.
            let said = |one: &Finding| (one.what, one.is.clone(), one.should.clone(), one.why.clone());
            let (alike, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(|one| said(one) == said(finding));
            rest = others;
            let subjects: Vec<&str> = alike.iter().map(|one| one.subject.as_str()).collect();
            let change = match verdict {
                Verdict::Mend | Verdict::Advise | Verdict::Note if finding.should != "as it is" => {
                    format!("{} -> {}", finding.is, finding.should)
                }
                _ => finding.is.clone(),
            };
            text.push_str(&format!("\n{}: {} {}: {change}\n", verdict.word(), subjects.join(", "), finding.what));
            if !finding.why.is_empty() {
                text.push_str(&format!("    {}\n", finding.why));
            }
            text.push_str(&format!("    [{}]\n", finding.source));
        }
    }
    let good = found.iter().filter(|finding| finding.verdict == Verdict::Good).count();
    if good > 0 && !all {
        text.push_str(&match good {
            1 => "\n1 more is as it should be (--all shows it)\n".to_owned(),
            _ => format!("\n{good} more are as they should be (--all shows them)\n"),
        });
    }
    text
}

/// Which settings were changed, or can be changed.
fn aftermath(arguments: &Tune, found: &[Finding], pending: usize, changes: &[Change]) -> String {
    if arguments.apply {
        if changes.is_empty() {
            return "\nnothing to set\n".to_owned();
        }
        let line = |change: &Change| {
            let outcome = match &change.outcome {
                Outcome::Set => "set".to_owned(),
                Outcome::Refused(why) => format!("refused: {why}"),
            };
            format!("{}: {} -> {}: {outcome}\n", change.path, change.before, change.value)
        };
        return format!("\n{}", changes.iter().map(line).collect::<String>());
    }
    let to_mend = found.iter().filter(|finding| finding.verdict == Verdict::Mend).count();
    match to_mend {
        0 => "\nnothing to mend\n".to_owned(),
        _ => format!(
            "\n{to_mend} to mend, by {pending} {}: `iomill tune --apply` sets {}, `--undo` puts the old values back. {}\n",
            if pending == 1 { "setting" } else { "settings" },
            if pending == 1 { "it" } else { "them" },
            if arguments.persist { "The files take effect at the next restart." } else { "Nothing was changed." }
        ),
    }
}

fn undo(context: &Context<'_>, arguments: &Tune, tree: &Tree) -> Result<Answer> {
    let nothing = |path: &Path| {
        let text = format!("nothing to undo: {} does not exist\n", path.display());
        Ok(Answer::new(text, undone_document(&Undone::default())))
    };
    let path = state_path(arguments)?;
    // `Store::open` would make the directory.
    if !path.exists() {
        return nothing(&path);
    }
    let store = Store::open(&path)?;
    let Some(undone) = apply::undo(tree, &store)? else { return nothing(store.path()) };
    context.note(undone.notes.iter().cloned());
    let mut text: String = undone.restored.iter().map(|path| format!("{path}: old value restored\n")).collect();
    text.extend(undone.files.iter().map(|path| format!("{path}: removed, or old text restored\n")));
    let mut answer = Answer::new(text, undone_document(&undone));
    if !undone.failed.is_empty() {
        answer.failures.push(Failure::Unsound(format!(
            "not put back: {}; their old values are still in {}",
            undone.failed.join("; "),
            store.path().display()
        )));
    }
    Ok(answer)
}

fn undone_document(undone: &Undone) -> Value {
    json!({ "restored": undone.restored, "files": undone.files, "failed": undone.failed })
}

/// A drive in JSON documents.
fn drive_document(drive: &Drive) -> Value {
    json!({
        "name": drive.name,
        "transport": drive.transport.name(),
        "model": drive.model,
        "bytes": drive.len_bytes,
        "node": drive.node,
        "cpus": drive.near,
    })
}

fn finding_document(finding: &Finding) -> Value {
    json!({
        "subject": finding.subject,
        "what": finding.what,
        "verdict": finding.verdict,
        "is": finding.is,
        "should": finding.should,
        "why": finding.why,
        "source": finding.source,
        "paths": finding.settings.iter().map(|setting| format!("/{}", setting.path)).collect::<Vec<_>>(),
    })
}

fn change_document(change: &Change) -> Value {
    let refused = match &change.outcome {
        Outcome::Set => None,
        Outcome::Refused(why) => Some(why),
    };
    json!({ "path": change.path, "before": change.before, "value": change.value, "refused": refused })
}
