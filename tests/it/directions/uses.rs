//! What one source file mentions of other modules: its imports, and the paths in its code.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Ident, Item, ItemMod, ItemUse, Meta, UseTree};

/// A path as written, without its generic arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mention {
    /// The resolved path: a name that a block imports is already replaced by what it refers to.
    pub(crate) segments: Vec<String>,
    pub(crate) written: String,
    pub(crate) line: usize,
    /// A macro called by its bare name, which an enclosing module may define.
    pub(crate) is_macro: bool,
}

/// One module, inline or in its own file.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    pub(crate) mentions: Vec<Mention>,
    /// Imported names, with the paths to which they refer.
    pub(crate) imports: BTreeMap<String, Vec<Vec<String>>>,
    /// The paths whose whole content is imported.
    pub(crate) globs: Vec<Vec<String>>,
    /// Types, functions and so on that the module defines.
    pub(crate) items: BTreeSet<String>,
    pub(crate) macros: BTreeSet<String>,
    pub(crate) inline: Vec<(String, Uses)>,
    /// Modules in their own files.
    pub(crate) files: Vec<String>,
    /// Those that are only for tests.
    pub(crate) test_files: Vec<String>,
}

/// Parses one file, leaving out code that is compiled only for tests.
pub(crate) fn read(text: &str) -> syn::Result<Uses> {
    let file = syn::parse_file(text)?;
    let mut reader = Reader::default();
    reader.visit_file(&file);
    match reader.not_understood {
        Some(error) => Err(error),
        None => Ok(reader.uses),
    }
}

#[derive(Default)]
struct Reader {
    uses: Uses,
    /// What the enclosing blocks import.
    blocks: Vec<BTreeMap<String, Vec<String>>>,
    not_understood: Option<syn::Error>,
}

impl Reader {
    fn mention(&mut self, segments: Vec<String>, line: usize) {
        let written = segments.join("::");
        let imported = self.blocks.iter().rev().find_map(|b| b.get(&segments[0]));
        let segments = match imported {
            Some(path) => path.iter().chain(&segments[1..]).cloned().collect(),
            None => segments,
        };
        self.uses.mentions.push(Mention {
            segments,
            written,
            line,
            is_macro: false,
        });
    }

    /// Macros get tokens, not paths: every `a::b` in them counts.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Ident(first) if !follows_colons(&tokens[..at]) => {
                    let mut segments = vec![first.unraw().to_string()];
                    while let Some(next) = segment_after(&tokens[at + 1..]) {
                        segments.push(next.unraw().to_string());
                        at += 3;
                    }
                    if is_path(&segments) {
                        self.mention(segments, first.span().start().line);
                    }
                }
                TokenTree::Literal(literal) => {
                    self.literal(&literal.to_string(), literal.span().start().line);
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// serde takes paths of functions as strings.
    fn literal(&mut self, literal: &str, line: usize) {
        let text = literal.trim_matches('"');
        let segments: Vec<String> = text.split("::").map(str::to_owned).collect();
        let is_name = |segment: &String| {
            matches!(segment.as_str(), "crate" | "super" | "self")
                || syn::parse_str::<Ident>(segment).is_ok()
        };
        if segments.len() > 1 && segments.iter().all(is_name) {
            self.mention(segments, line);
        }
    }

    fn module(&mut self, module: &ItemMod) {
        let name = module.ident.unraw().to_string();
        for attribute in &module.attrs {
            for unknown in ["path", "macro_use"] {
                if attribute.path().is_ident(unknown) {
                    let message = format!("#[{unknown}] on a module is not understood");
                    self.not_understood = Some(syn::Error::new(module.ident.span(), message));
                }
            }
        }
        let Some((_, items)) = &module.content else {
            self.uses.files.push(name);
            return;
        };
        let mut inner = Self::default();
        for item in items {
            inner.visit_item(item);
        }
        self.not_understood = self.not_understood.take().or(inner.not_understood);
        self.uses.inline.push((name, inner.uses));
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_for_tests(attributes(item)) {
            if let Item::Mod(module) = item {
                self.uses.test_files.push(module.ident.unraw().to_string());
            }
            return;
        }
        if self.blocks.is_empty()
            && let Some(name) = name(item)
        {
            self.uses.items.insert(name);
        }
        if let Item::Macro(item) = item
            && let Some(name) = &item.ident
        {
            self.uses.macros.insert(name.unraw().to_string());
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        self.module(module);
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        for leaf in leaves(item) {
            self.uses.mentions.push(Mention {
                segments: leaf.path.clone(),
                written: leaf.path.join("::"),
                line: leaf.line,
                is_macro: false,
            });
            match leaf.name {
                Some(name) if self.blocks.is_empty() => {
                    self.uses.imports.entry(name).or_default().push(leaf.path);
                }
                Some(_) => {}
                None => self.uses.globs.push(leaf.path),
            }
        }
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        let mut imports = BTreeMap::new();
        for statement in &block.stmts {
            if let syn::Stmt::Item(Item::Use(item)) = statement {
                for leaf in leaves(item) {
                    if let Some(name) = leaf.name {
                        imports.insert(name, leaf.path);
                    }
                }
            }
        }
        self.blocks.push(imports);
        visit::visit_block(self, block);
        self.blocks.pop();
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let segments = path.segments.iter().map(|s| s.ident.unraw().to_string());
            let segments: Vec<String> = segments.collect();
            if is_path(&segments) {
                self.mention(segments, path.span().start().line);
            }
        }
        visit::visit_path(self, path);
    }

    /// `pub(crate)` and `pub(in super::a)` say which modules may use an item, not what this one
    /// uses.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        visit::visit_macro(self, call);
        if let Some(name) = call.path.get_ident() {
            let name = name.unraw().to_string();
            self.uses.mentions.push(Mention {
                written: format!("{name}!"),
                segments: vec![name],
                line: call.path.span().start().line,
                is_macro: true,
            });
        }
        self.tokens(call.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        match &attribute.meta {
            Meta::Path(_) => {}
            Meta::List(list) => self.tokens(list.tokens.clone()),
            // A comment, or `#[must_use = "…"]`: text.
            Meta::NameValue(_) => {}
        }
    }
}

/// One name that an import introduces, or everything of a module.
struct Leaf {
    path: Vec<String>,
    name: Option<String>,
    line: usize,
}

fn leaves(item: &ItemUse) -> Vec<Leaf> {
    let mut found = Vec::new();
    // `use ::name` is another crate.
    if item.leading_colon.is_none() {
        gather(&item.tree, &mut Vec::new(), &mut found);
    }
    found
}

fn gather(tree: &UseTree, before: &mut Vec<String>, found: &mut Vec<Leaf>) {
    let mut push = |before: &[String], ident: &Ident, name: Option<&Ident>| {
        let mut path = before.to_vec();
        let written = ident.unraw().to_string();
        // `use a::{self}` names a itself.
        if written != "self" || path.is_empty() {
            path.push(written);
        }
        let name = name.map_or_else(|| path.last().cloned(), |n| Some(n.unraw().to_string()));
        found.push(Leaf {
            path,
            name,
            line: ident.span().start().line,
        });
    };
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.unraw().to_string());
            gather(&path.tree, before, found);
            before.pop();
        }
        UseTree::Name(name) => push(before, &name.ident, None),
        UseTree::Rename(rename) => push(before, &rename.ident, Some(&rename.rename)),
        UseTree::Glob(glob) => found.push(Leaf {
            path: before.clone(),
            name: None,
            line: glob.span().start().line,
        }),
        UseTree::Group(group) => {
            for tree in &group.items {
                gather(tree, before, found);
            }
        }
    }
}

/// More than a name in the module itself.
fn is_path(segments: &[String]) -> bool {
    segments.len() > 1
}

fn follows_colons(before: &[TokenTree]) -> bool {
    let is_colon = |token: &TokenTree| matches!(token, TokenTree::Punct(p) if p.as_char() == ':');
    before.len() > 1 && before[before.len() - 2..].iter().all(is_colon)
}

/// The name after `::`.
fn segment_after(tokens: &[TokenTree]) -> Option<&Ident> {
    match tokens {
        [
            TokenTree::Punct(a),
            TokenTree::Punct(b),
            TokenTree::Ident(name),
            ..,
        ] if a.as_char() == ':' && b.as_char() == ':' => Some(name),
        _ => None,
    }
}

/// `#[cfg(test)]`, `#[cfg(all(test, …))]` and `#[test]`.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || matches!(&attribute.meta, Meta::List(list)
                if list.path.is_ident("cfg") && needs_test(list.tokens.clone()))
    })
}

fn needs_test(condition: TokenStream) -> bool {
    let tokens: Vec<TokenTree> = condition.into_iter().collect();
    match tokens.as_slice() {
        [TokenTree::Ident(all), TokenTree::Group(group)] if all == "all" => {
            let tokens: Vec<TokenTree> = group.stream().into_iter().collect();
            let is_comma =
                |token: &TokenTree| matches!(token, TokenTree::Punct(p) if p.as_char() == ',');
            let mut parts = tokens.split(is_comma);
            parts.any(|part| needs_test(part.iter().cloned().collect()))
        }
        [TokenTree::Ident(word)] => word == "test",
        _ => false,
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn name(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.unraw().to_string())
}
