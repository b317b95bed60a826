//! Attributes of objects as attributes of the catalog. `docs/objects.md` has the table of their keys. Attributes of a
//! file with other keys are not those of an object.

use std::collections::BTreeMap;

use super::convert::error;
use super::object_store::path::Path;
use super::object_store::{Attribute, Attributes, Result};
use crate::common::{Fault, Kind};

const KEY: &str = "object:";
const METADATA: &str = "object:metadata:";

/// Attributes that have one name.
const NAMED: [(&str, Attribute); 6] = [
    ("object:cache-control", Attribute::CacheControl),
    ("object:content-disposition", Attribute::ContentDisposition),
    ("object:content-encoding", Attribute::ContentEncoding),
    ("object:content-language", Attribute::ContentLanguage),
    ("object:content-type", Attribute::ContentType),
    ("object:storage-class", Attribute::StorageClass),
];

/// Keys and values of the catalog. It refuses keys of more than 100 bytes, and more than 64 KiB in all.
pub fn to_catalog(attributes: &Attributes, location: &Path) -> Result<Vec<(String, String)>> {
    let pair = |(attribute, value): (&Attribute, &super::object_store::AttributeValue)| {
        let key = match attribute {
            Attribute::Metadata(key) => [METADATA, key].concat(),
            other => match NAMED.iter().find(|(_, known)| known == other) {
                Some((key, _)) => (*key).to_owned(),
                None => {
                    let why = format!("the attribute {other:?} of {location}: it is new to this store; leave it out");
                    return Err(error(Fault::new(Kind::NotSupported, why), location));
                }
            },
        };
        Ok((key, value.to_string()))
    };
    attributes.iter().map(pair).collect()
}

pub fn of_catalog(attributes: &BTreeMap<String, String>) -> Attributes {
    let of_objects = attributes.range(KEY.to_owned()..).take_while(|(key, _)| key.starts_with(KEY));
    let known = of_objects.filter_map(|(key, value)| {
        let attribute = match key.strip_prefix(METADATA) {
            Some(key) => Attribute::Metadata(key.to_owned().into()),
            None => NAMED.iter().find(|(known, _)| known == key)?.1.clone(),
        };
        Some((attribute, value.clone()))
    });
    known.collect()
}
