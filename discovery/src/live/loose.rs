//! Reads JSON whose fields may have any type: a value of the wrong type counts as absent.
//!
//! What always holds: only text that is no JSON is an error, so that one odd object costs itself and never the list that it is in; what is
//! not wanted is passed over without being kept.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// What is made of each type of value; of those that are not wanted the default is.
pub(super) trait Loose: Default {
    fn of_text(_: &str) -> Self {
        Self::default()
    }

    fn of_number(_: i64) -> Self {
        Self::default()
    }

    fn of_list<'de, A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Self::default())
    }

    fn of_object<'de, A: MapAccess<'de>>(mut object: A) -> Result<Self, A::Error> {
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Self::default())
    }
}

/// For `deserialize_with`.
pub(super) fn read<'de, T: Loose, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    Reading(PhantomData).deserialize(from)
}

/// For the `of_object` of a struct whose fields are all read with [`read`].
pub(super) fn fields<'de, T: DeserializeOwned, A: MapAccess<'de>>(object: A) -> Result<T, A::Error> {
    T::deserialize(MapAccessDeserializer::new(object))
}

impl Loose for String {
    fn of_text(text: &str) -> Self {
        text.to_owned()
    }
}

impl Loose for Option<String> {
    fn of_text(text: &str) -> Self {
        Some(text.to_owned())
    }
}

/// A port; what cannot be one is none.
impl Loose for Option<u16> {
    fn of_number(number: i64) -> Self {
        u16::try_from(number).ok()
    }
}

impl<T: Loose> Loose for Vec<T> {
    fn of_list<'de, A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let mut all = Self::new();
        while let Some(element) = list.next_element_seed(Reading(PhantomData))? {
            all.push(element);
        }
        Ok(all)
    }
}

/// Labels and annotations.
impl Loose for BTreeMap<String, String> {
    fn of_object<'de, A: MapAccess<'de>>(mut object: A) -> Result<Self, A::Error> {
        let mut all = Self::new();
        while let Some(key) = object.next_key()? {
            if let Some(value) = object.next_value_seed(Reading(PhantomData))? {
                all.insert(key, value);
            }
        }
        Ok(all)
    }
}

/// Is there an object, whatever is in it?
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IsThere(pub(super) bool);

impl Loose for IsThere {
    fn of_object<'de, A: MapAccess<'de>>(mut object: A) -> Result<Self, A::Error> {
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Self(true))
    }
}

struct Reading<T>(PhantomData<T>);

impl<'de, T: Loose> DeserializeSeed<'de> for Reading<T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<T, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de, T: Loose> Visitor<'de> for Reading<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        Ok(T::of_number(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        Ok(i64::try_from(number).map(T::of_number).unwrap_or_default())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        Ok(T::of_text(text))
    }

    fn visit_unit<E: Error>(self) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<T, A::Error> {
        T::of_list(list)
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<T, A::Error> {
        T::of_object(object)
    }
}
