//! Links: adding texts, and the module that they become.

use crate::base::codes::{Answer, INVALID_HANDLE};
use crate::base::handle::Handle;
use crate::device::compiler_options::CompilerOptions;
use crate::device::image::{self, ImageError};
use crate::device::linker::Link;
use crate::machine::Machine;

impl Machine {
    pub(crate) fn link_create(&mut self, options: CompilerOptions) -> Answer<Handle> {
        self.links.insert(Link { inputs: Vec::new(), options, image: None })
    }

    pub(crate) fn link(&mut self, handle: Handle) -> Answer<&mut Link> {
        self.links.get_mut(handle).ok_or(INVALID_HANDLE)
    }
}

impl Link {
    /// Adds an image, if its text can be parsed.
    pub(crate) fn add(&mut self, name: &str, image: &[u8]) -> Result<(), ImageError> {
        let text = image::text(image)?;
        let module = image::parse(&text)?;
        image::check_target(&module, self.options.target)?;
        self.inputs.push((name.into(), text.into_owned()));
        Ok(())
    }

    /// Links the texts. The image is the same each time.
    pub(crate) fn complete(&mut self) -> Result<&[u8], ImageError> {
        let image = match self.image.take() {
            Some(image) => image,
            None => self.build()?,
        };
        Ok(self.image.insert(image))
    }

    fn build(&mut self) -> Result<Box<[u8]>, ImageError> {
        let text = image::linked(self.inputs.iter().map(|(_, text)| text.as_str()));
        let module = image::parse(&text)?;
        image::check_defined(&module, |_| false)?;
        self.options.info.add(&image::notes(&module, |_| false).join("\n"));
        Ok((text + "\0").into_bytes().into())
    }
}
