//! Small shared libraries, as a dynamic loader reads them: symbols with versions, and constants.

/// What a library has; [`SharedLibrary::bytes`] is its file, of 64 bits for this machine.
#[derive(Clone, Debug, Default)]
pub struct SharedLibrary {
    pub soname: String,
    pub needed: Vec<String>,
    /// Names and versions; an empty version is none.
    pub defined: Vec<(String, String)>,
    /// Names and versions, and the libraries that they are expected from.
    pub undefined: Vec<(String, String, String)>,
    pub strings: Vec<String>,
    /// A structure that begins with a pointer to a name, two numbers and a pointer.
    pub record: Option<(String, u32, u32)>,
}

/// The bytes of a table that grows, with the names that it refers to.
#[derive(Default)]
struct Names(Vec<u8>);

impl Names {
    fn add(&mut self, name: &str) -> u32 {
        let at = self.0.len();
        self.0.extend(name.bytes().chain([0]));
        u32::try_from(at).unwrap()
    }
}

fn numbers<const N: usize>(values: [u64; N]) -> Vec<u8> {
    values.into_iter().flat_map(u64::to_le_bytes).collect()
}

const HEADERS: usize = 64 + 2 * 56;

impl SharedLibrary {
    pub fn new(soname: &str) -> Self {
        SharedLibrary { soname: soname.to_owned(), ..SharedLibrary::default() }
    }

    #[must_use]
    pub fn defines(mut self, version: &str, names: &[&str]) -> Self {
        let names = names.iter().map(|name| (*name).to_owned());
        self.defined.extend(names.map(|name| (name, version.to_owned())));
        self
    }

    /// Needs symbols of a library.
    #[must_use]
    pub fn needs(mut self, library: &str, version: &str, names: &[&str]) -> Self {
        if !self.needed.iter().any(|needed| needed == library) {
            self.needed.push(library.to_owned());
        }
        for name in names {
            let (name, version) = ((*name).to_owned(), version.to_owned());
            self.undefined.push((name, version, library.to_owned()));
        }
        self
    }

    #[must_use]
    pub fn says(mut self, string: &str) -> Self {
        self.strings.push(string.to_owned());
        self
    }

    #[must_use]
    pub fn record(mut self, name: &str, least: u32, most: u32) -> Self {
        self.record = Some((name.to_owned(), least, most));
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut names = Names(vec![0]);
        let mut symbols = vec![0; 24];
        let mut indices = vec![0, 0];
        let (definitions, versions) = self.definitions(&mut names);
        let (needs, libraries) = self.version_needs(&mut names, versions.len() + 2);
        let mut symbol = |name: u32, section: u16, index: usize| {
            symbols.extend(name.to_le_bytes());
            symbols.extend([0x12, 0]);
            symbols.extend(section.to_le_bytes());
            symbols.extend([0; 16]);
            indices.extend(u16::try_from(index).unwrap().to_le_bytes());
        };
        for (name, version) in &self.defined {
            let index = versions.iter().position(|other| *other == version);
            symbol(names.add(name), 1, index.map_or(1, |index| index + 2));
        }
        for (name, version, library) in &self.undefined {
            let index = libraries
                .iter()
                .position(|need| *need == (library, version))
                .map_or(1, |index| index + versions.len() + 2);
            symbol(names.add(name), 0, index);
        }
        let soname = names.add(&self.soname);
        let needed: Vec<u32> = self.needed.iter().map(|name| names.add(name)).collect();
        let count = u32::try_from(symbols.len() / 24).unwrap();
        let mut file = vec![0; HEADERS];
        let mut place = |bytes: &[u8]| {
            file.resize(file.len().next_multiple_of(8), 0);
            let at = file.len() as u64;
            file.extend(bytes);
            at
        };
        let mut dynamic = Vec::new();
        for name in needed {
            dynamic.extend(numbers([1, name.into()]));
        }
        dynamic.extend(numbers([14, soname.into(), 5, place(&names.0), 10, names.0.len() as u64]));
        dynamic.extend(numbers([6, place(&symbols), 0x6fff_fff0, place(&indices)]));
        dynamic.extend(numbers([4, place(&[1_u32, count].map(u32::to_le_bytes).concat())]));
        if !versions.is_empty() {
            dynamic.extend(numbers([0x6fff_fffc, place(&definitions)]));
        }
        if !libraries.is_empty() {
            dynamic.extend(numbers([0x6fff_fffe, place(&needs)]));
        }
        for string in &self.strings {
            place(&[&[0], string.as_bytes(), &[0]].concat());
        }
        if let Some((name, least, most)) = &self.record {
            let name = place(&[name.as_bytes(), &[0]].concat());
            let pair = u64::from(*least) | u64::from(*most) << 32;
            let at = place(&numbers([0, pair, 0]));
            let kind = if cfg!(target_arch = "aarch64") { 1027 } else { 8 };
            let pointers = numbers([at, kind, name, at + 16, kind, at]);
            dynamic.extend(numbers([7, place(&pointers), 8, pointers.len() as u64]));
        }
        dynamic.extend(numbers([0, 0]));
        let at = place(&dynamic);
        let headers = headers(at, dynamic.len() as u64, file.len() as u64);
        file[..HEADERS].copy_from_slice(&headers);
        file
    }

    /// .gnu.version_d, and the names of the versions, whose first has the index 2.
    fn definitions(&self, names: &mut Names) -> (Vec<u8>, Vec<&String>) {
        let mut versions: Vec<&String> = self.defined.iter().map(|(_, version)| version).collect();
        versions.sort();
        versions.dedup();
        versions.retain(|version| !version.is_empty());
        let mut table = Vec::new();
        for (at, version) in versions.iter().enumerate() {
            let index = u16::try_from(at + 2).unwrap();
            let next = if at + 1 == versions.len() { 0 } else { 28_u32 };
            table.extend([1_u16, 0, index, 1].map(u16::to_le_bytes).concat());
            table.extend([0, 20, next, names.add(version), 0].map(u32::to_le_bytes).concat());
        }
        (table, versions)
    }

    /// .gnu.version_r, with a record for each version, and the libraries and versions by their indices from `first` on.
    fn version_needs(&self, names: &mut Names, first: usize) -> (Vec<u8>, Vec<(&String, &String)>) {
        let mut needs: Vec<_> = self
            .undefined
            .iter()
            .filter(|(_, version, _)| !version.is_empty())
            .map(|(_, version, library)| (library, version))
            .collect();
        needs.sort();
        needs.dedup();
        let mut table = Vec::new();
        for (at, (library, version)) in needs.iter().enumerate() {
            let next = if at + 1 == needs.len() { 0 } else { 32_u32 };
            table.extend([1_u16, 1].map(u16::to_le_bytes).concat());
            table.extend([names.add(library), 16, next, 0].map(u32::to_le_bytes).concat());
            table.extend([0, u16::try_from(first + at).unwrap()].map(u16::to_le_bytes).concat());
            table.extend([names.add(version), 0].map(u32::to_le_bytes).concat());
        }
        (table, needs)
    }
}

fn headers(dynamic: u64, dynamic_bytes: u64, bytes: u64) -> Vec<u8> {
    let machine = if cfg!(target_arch = "aarch64") { 183 } else { 62_u16 };
    let mut headers = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0".to_vec();
    headers.extend(machine.to_le_bytes());
    headers.extend([1, 0, 0, 0]);
    headers.extend(numbers([0, 64, 0]));
    headers.extend([0, 0, 0, 0]);
    headers.extend([64_u16, 56, 2, 64, 0, 0].map(u16::to_le_bytes).concat());
    for (kind, at, size) in [(1_u64, 0, bytes), (2, dynamic, dynamic_bytes)] {
        headers.extend(numbers([kind | 4 << 32, at, at, at, size, size, 8]));
    }
    headers
}
