//! A year of temperatures as a Zarr array in shards on the drives of an iomill array, and the year of one place.
//!
//! `judge-zarrs DIRECTORY...` makes an array in empty directories, best one on each SSD, and leaves the Zarr array
//! there.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use iomill::Array;
use iomill_object_store::v0_14::IomillStore;
use zarrs::array::{ArrayBuilder, ArraySubset, data_type};
use zarrs_object_store::AsyncObjectStore;

const DAYS: u64 = 365;
const LATITUDES: u64 = 60;
const LONGITUDES: u64 = 120;

/// Made-up values: warm in July, and at the equator, which is in the middle.
fn celsius(day: u64, latitude: u64, longitude: u64) -> f32 {
    let season = (day as f32 / DAYS as f32 * std::f32::consts::TAU).cos();
    let north = 1.0 - 2.0 * latitude as f32 / LATITUDES as f32;
    28.0 - 35.0 * north * north - 12.0 * north * season + (longitude * 31 % 17) as f32 / 4.0
}

#[tokio::main]
async fn main() -> Result<()> {
    let drives: Vec<String> = std::env::args().skip(1).collect();
    ensure!(!drives.is_empty(), "no drives are given; run `judge-zarrs DIRECTORY...` with empty directories");
    let array = Array::create(&drives).context("no array can be made there")?;
    let store = Arc::new(AsyncObjectStore::new(IomillStore::array(array.clone())));

    // A shard is one object of 30 by 30 places, and a chunk in it the year of 5 by 5 places.
    let weather =
        ArrayBuilder::new(vec![DAYS, LATITUDES, LONGITUDES], vec![DAYS, 30, 30], data_type::float32(), f32::NAN)
            .subchunk_shape(vec![DAYS, 5, 5])
            .build(store, "/celsius")?;
    weather.async_store_metadata().await?;
    for (shard, north, east) in (0..LATITUDES / 30).flat_map(|y| (0..LONGITUDES / 30).map(move |x| ([0, y, x], y, x))) {
        let places = |day| (0..900).map(move |at| celsius(day, north * 30 + at / 30, east * 30 + at % 30));
        let values: Vec<f32> = (0..DAYS).flat_map(places).collect();
        weather.async_store_chunk(&shard, values).await?;
    }

    // Only the index of one shard and one of its chunks are read.
    let place = ArraySubset::new_with_ranges(&[0..DAYS, 20..21, 77..78]);
    let year: Vec<f32> = weather.async_retrieve_array_subset(&place).await?;
    let (coldest, warmest) = year.iter().fold((f32::MAX, f32::MIN), |(low, high), &t| (low.min(t), high.max(t)));
    println!("{} days at latitude 20, longitude 77: {coldest:.1} to {warmest:.1} degrees", year.len());

    drop(weather);
    Ok(array.close_async().await?)
}
