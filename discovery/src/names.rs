//! Each name once: what servers serve is kept as numbers.

use std::collections::HashMap;

use crate::Gvr;
use crate::table::ENTRIES_MAX;

/// Names in the order they came.
#[derive(Default)]
pub(crate) struct Names {
    list: Vec<Gvr>,
    ids: HashMap<Gvr, u32>,
}

impl Names {
    /// The number of a name, which it gets now if it has none; `None` when there are more than anybody needs.
    pub(crate) fn id(&mut self, gvr: &Gvr) -> Option<u32> {
        if let Some(&id) = self.ids.get(gvr) {
            return Some(id);
        }
        let id = u32::try_from(self.list.len()).ok().filter(|_| !self.is_full())?;
        self.list.push(gvr.clone());
        self.ids.insert(gvr.clone(), id);
        Some(id)
    }

    pub(crate) fn get(&self, id: u32) -> Option<&Gvr> {
        self.list.get(id as usize)
    }

    /// Has everybody else to go without?
    pub(crate) fn is_full(&self) -> bool {
        self.list.len() >= 4 * ENTRIES_MAX
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Gvr> {
        self.list.iter()
    }
}
