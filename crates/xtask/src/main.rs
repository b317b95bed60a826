//! `cargo xtask tidy` checks the repository itself. `cargo xtask forbidden` runs its tests as in a container.
//! `cargo xtask budget` counts the instructions of its operations. `cargo xtask public` lists the public interface.
//! `cargo xtask quick` checks what a change of one room is most likely to break.

mod budget;
mod forbidden;
mod quick;
mod tidy;
mod workspace;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let command = arguments.iter().map(String::as_str).collect::<Vec<_>>();
    match command[..] {
        ["tidy"] => tidy(),
        ["forbidden", "--", program, ref arguments @ ..] | ["forbidden", program, ref arguments @ ..] => {
            eprintln!("forbidden: {program}: {}", forbidden::run(program, arguments));
            ExitCode::from(2)
        }
        ["tidy", "--prose"] => listed(tidy::prose_exceptions),
        ["tidy", "--knots"] => listed(tidy::knots),
        ["public"] => public(false),
        ["public", "--write"] => public(true),
        ["budget"] => budget(false),
        ["budget", "--record"] => budget(true),
        ["quick"] => quick("HEAD"),
        ["quick", "--base", base] => quick(base),
        _ => {
            eprintln!(
                "usage: cargo xtask quick [--base REV], cargo xtask tidy [--prose | --knots], cargo xtask public [--write], \
                 cargo xtask budget [--record], or cargo xtask forbidden -- COMMAND..."
            );
            ExitCode::from(2)
        }
    }
}

/// Exit code 0 if everything is tidy, 1 if not, 2 if the check itself failed.
fn tidy() -> ExitCode {
    match workspace::Workspace::load().and_then(|workspace| tidy::check(&workspace)) {
        Ok(findings) if findings.is_empty() => {
            println!("tidy");
            ExitCode::SUCCESS
        }
        Ok(findings) => {
            findings.iter().for_each(|finding| eprintln!("{finding}"));
            eprintln!("{} findings", findings.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("tidy: {error}");
            ExitCode::from(2)
        }
    }
}

/// Prints what tidy knows: the exceptions for prose as they should be now, or the knots. The exceptions include files
/// that have got worse, so compare before you copy them.
fn listed(list: fn(&workspace::Workspace) -> workspace::Result<String>) -> ExitCode {
    match workspace::Workspace::load().and_then(|workspace| list(&workspace)) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("tidy: {error}");
            ExitCode::from(2)
        }
    }
}

/// Prints the list of the library's public interface, or writes it to its file.
fn public(writes: bool) -> ExitCode {
    let listed = workspace::Workspace::load().and_then(|workspace| {
        let (listing, path) = tidy::public_interface(&workspace)?;
        if writes {
            std::fs::write(workspace.root.join(path), &listing).map_err(|e| format!("{path}: {e}"))?;
        } else {
            print!("{listing}");
        }
        Ok(())
    });
    match listed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("public: {error}");
            ExitCode::from(2)
        }
    }
}

/// Exit code 0 if no operation is over its budget, or if none can be counted here; 1 if one is; 2 if counting failed.
fn budget(records: bool) -> ExitCode {
    match workspace::Workspace::load().and_then(|workspace| budget::check(&workspace, records)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("budget: {error}");
            ExitCode::from(2)
        }
    }
}

/// Exit code 0 if nothing is wrong, 1 if something is, 2 if the check itself failed.
fn quick(base: &str) -> ExitCode {
    match workspace::Workspace::load().and_then(|workspace| quick::check(&workspace, base)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("quick: {error}");
            ExitCode::from(2)
        }
    }
}
