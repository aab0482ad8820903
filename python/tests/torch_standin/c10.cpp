/* Stands for PyTorch's libraries libc10.so and libc10_cuda.so: its exceptions, by their names. */

#include <cstdint>
#include <stdexcept>
#include <string>

namespace c10 {

struct SourceLocation {
    const char *function, *file;
    std::uint32_t line;
};

class Error : public std::exception {
  public:
    Error(SourceLocation location, std::string text);
    const char *what() const noexcept override;

  private:
    std::string text_;
};

class OutOfMemoryError : public Error {
  public:
    using Error::Error;
    const char *what() const noexcept override;
};

Error::Error(SourceLocation, std::string text) : text_(std::move(text)) {}
const char *Error::what() const noexcept { return text_.c_str(); }
const char *OutOfMemoryError::what() const noexcept { return Error::what(); }

} // namespace c10
