//! The modules of one crate, and which file uses which.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::uses::{self, Mention, Uses};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrow {
    pub(crate) place: String,
    /// The path that uses it, as written.
    pub(crate) written: String,
}

/// From file and to file, with the first line that uses it.
pub(crate) type Arrows = BTreeMap<(String, String), Arrow>;

/// The files of a crate, with the names of their modules from the root; empty for the root.
pub(crate) type Files = BTreeMap<String, Vec<String>>;

struct Module {
    /// The names from the root of the crate; empty for the root.
    path: Vec<String>,
    file: String,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    uses: Uses,
}

/// The modules of one crate, without those that are only for tests.
#[derive(Default)]
pub(crate) struct Modules {
    modules: Vec<Module>,
    /// Files of modules that are only for tests.
    pub(crate) test_files: BTreeSet<String>,
}

/// Gives the text of a file, if there is one.
type Read<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Where a module is.
struct ModuleLocation {
    file: String,
    /// The directory for the files of its modules.
    directory: PathBuf,
    parent: Option<usize>,
    path: Vec<String>,
}

impl ModuleLocation {
    fn root(file: &str) -> Self {
        Self {
            file: file.to_owned(),
            directory: Path::new(file).with_file_name(""),
            parent: None,
            path: Vec::new(),
        }
    }

    /// A module in this one, whose index is given.
    fn child(&self, index: usize, name: &str) -> Self {
        Self {
            file: self.file.clone(),
            directory: self.directory.join(name),
            parent: Some(index),
            path: [self.path.as_slice(), &[name.to_owned()]].concat(),
        }
    }

    /// The first existing file among those that may contain a module of this one.
    fn file_of(&self, name: &str, read: Read<'_>) -> Option<String> {
        let files = [format!("{name}.rs"), format!("{name}/mod.rs")];
        let mut files = files
            .map(|file| self.directory.join(file).display().to_string())
            .into_iter();
        files.find(|file| read(file).is_some())
    }
}

impl Modules {
    /// Reads the crate that begins at the file `root`.
    pub(crate) fn read(root: &str, read: Read<'_>) -> Result<Self, String> {
        let mut found = Self::default();
        found.file(&ModuleLocation::root(root), read)?;
        Ok(found)
    }

    /// Adds the module of a file and those in it, and returns its index.
    fn file(&mut self, place: &ModuleLocation, read: Read<'_>) -> Result<usize, String> {
        let file = &place.file;
        let text = read(file).ok_or_else(|| format!("{file}: no such file"))?;
        let uses = uses::read(&text).map_err(|error| {
            let line = error.span().start().line;
            format!("{file}:{line}: {error}")
        })?;
        self.module(uses, place, read)
    }

    fn module(
        &mut self,
        mut uses: Uses,
        place: &ModuleLocation,
        read: Read<'_>,
    ) -> Result<usize, String> {
        let inline = std::mem::take(&mut uses.inline);
        let files = std::mem::take(&mut uses.files);
        let tests = std::mem::take(&mut uses.test_files);
        let index = self.modules.len();
        self.modules.push(Module {
            path: place.path.clone(),
            file: place.file.clone(),
            parent: place.parent,
            children: BTreeMap::new(),
            uses,
        });
        for (name, uses) in inline {
            let child = self.module(uses, &place.child(index, &name), read)?;
            self.modules[index].children.insert(name, child);
        }
        for name in files {
            let file = place.file_of(&name, read);
            let file = file.ok_or_else(|| format!("{}: mod {name} has no file", place.file))?;
            let child = ModuleLocation {
                file,
                ..place.child(index, &name)
            };
            let child = self.file(&child, read)?;
            self.modules[index].children.insert(name, child);
        }
        let tests = tests.iter().filter_map(|name| place.file_of(name, read));
        self.test_files.extend(tests);
        Ok(index)
    }

    /// Every file of the crate.
    pub(crate) fn files(&self) -> Files {
        let mut files = Files::new();
        for module in &self.modules {
            files
                .entry(module.file.clone())
                .or_insert_with(|| module.path.clone());
        }
        files
    }

    /// Which file uses which other file of the crate.
    pub(crate) fn arrows(&self) -> Arrows {
        let mut arrows = Arrows::new();
        for (index, module) in self.modules.iter().enumerate() {
            for mention in &module.uses.mentions {
                for to in self.named(index, mention) {
                    let to = &self.modules[to].file;
                    if *to != module.file {
                        let arrow = Arrow {
                            place: format!("{}:{}", module.file, mention.line),
                            written: mention.written.clone(),
                        };
                        arrows
                            .entry((module.file.clone(), to.clone()))
                            .or_insert(arrow);
                    }
                }
            }
        }
        arrows
    }

    /// The modules to which a path leads: the deepest one that it names, and each module through
    /// whose import it passes.
    fn named(&self, from: usize, mention: &Mention) -> BTreeSet<usize> {
        if mention.is_macro {
            return self
                .macro_above(from, &mention.segments[0])
                .into_iter()
                .collect();
        }
        self.resolve(from, &mention.segments, &mut BTreeSet::new())
    }

    /// A macro with a bare name belongs to an enclosing module, or to another crate.
    fn macro_above(&self, from: usize, name: &str) -> Option<usize> {
        let above = std::iter::successors(Some(from), |index| self.modules[*index].parent);
        above
            .into_iter()
            .find(|index| self.modules[*index].uses.macros.contains(name))
    }

    /// Resolves a path in the module `from`. Empty for a path of another crate.
    fn resolve(
        &self,
        from: usize,
        path: &[String],
        seen: &mut BTreeSet<(usize, String)>,
    ) -> BTreeSet<usize> {
        let mut at = from;
        let mut rest = path;
        let mut is_anchored = false;
        while let [first, after @ ..] = rest {
            match first.as_str() {
                "crate" => at = 0,
                "super" => at = self.modules[at].parent.unwrap_or(0),
                "self" => {}
                _ => break,
            }
            is_anchored = true;
            rest = after;
        }
        match self.descend(at, rest, seen) {
            Some(named) => named,
            None if is_anchored => BTreeSet::from([at]),
            None => BTreeSet::new(),
        }
    }

    /// Resolves names below the module `at`; `None` if it does not have even the first one.
    fn descend(
        &self,
        at: usize,
        path: &[String],
        seen: &mut BTreeSet<(usize, String)>,
    ) -> Option<BTreeSet<usize>> {
        let [name, rest @ ..] = path else {
            return Some(BTreeSet::from([at]));
        };
        let module = &self.modules[at];
        if let Some(child) = module.children.get(name) {
            let named = self.descend(*child, rest, seen);
            return Some(named.unwrap_or_else(|| BTreeSet::from([*child])));
        }
        if module.uses.items.contains(name) || module.uses.macros.contains(name) {
            return Some(BTreeSet::from([at]));
        }
        // An import may refer to itself, as `use a::a` does for an external crate `a`.
        if !seen.insert((at, name.clone())) {
            return None;
        }
        if let Some(imported) = module.uses.imports.get(name) {
            let mut named = BTreeSet::from([at]);
            for path in imported {
                named.extend(self.resolve(at, &[path, rest].concat(), seen));
            }
            return Some(named);
        }
        module.uses.globs.iter().find_map(|glob| {
            let targets = self.resolve(at, glob, seen);
            let target = targets.into_iter().next_back()?;
            let mut named = self.descend(target, path, seen)?;
            named.insert(at);
            Some(named)
        })
    }
}
