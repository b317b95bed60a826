//! Sessions of users in SlateDB. Its files are on the drives of an iomill array.
//!
//! `judge-slatedb DIRECTORY...` makes an array in empty directories, best one on each SSD, and leaves the database
//! there.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use iomill::Array;
use iomill_object_store::v0_14::IomillStore;
use slatedb::{Db, WriteBatch};

const USERS: u32 = 5_000;

#[tokio::main]
async fn main() -> Result<()> {
    let drives: Vec<String> = std::env::args().skip(1).collect();
    ensure!(!drives.is_empty(), "no drives are given; run `judge-slatedb DIRECTORY...` with empty directories");
    let array = Array::create(&drives).context("no array can be made there")?;
    let store = Arc::new(IomillStore::array(array.clone()));

    let sessions = Db::open("sessions", store.clone()).await?;
    let mut batch = WriteBatch::new();
    for user in 0..USERS {
        for device in ["phone", "desk"] {
            batch.put(format!("user/{user:05}/{device}"), format!("token {:08x}", user.wrapping_mul(0x9E37_79B9)));
        }
    }
    // The log is on the drives before this returns.
    sessions.write(batch).await?.await_durable().await?;
    sessions.delete("user/00042/desk").await?;
    sessions.close().await?;

    // As after a restart.
    let sessions = Db::open("sessions", store).await?;
    let token = sessions.get("user/01234/phone").await?.context("the phone of user 1234 has no session")?;
    println!("user 1234 by phone: {}", String::from_utf8_lossy(&token));
    let mut found = sessions.scan_prefix("user/00042/", ..).await?;
    while let Some(session) = found.next().await? {
        println!("left of user 42: {}", String::from_utf8_lossy(&session.key));
    }
    let (mut all, mut count) = (sessions.scan(..).await?, 0);
    while all.next().await?.is_some() {
        count += 1;
    }
    println!("{count} sessions");

    sessions.close().await?;
    drop(sessions);
    Ok(array.close_async().await?)
}
