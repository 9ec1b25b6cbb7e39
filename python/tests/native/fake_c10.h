/* The part of PyTorch's exception interface that the shim resolves by name, with a layout of its own. */
#include <cstdint>
#include <exception>
#include <string>
#include <utility>

namespace c10 {
struct SourceLocation {
    const char *function;
    const char *file;
    uint32_t line;
};

class __attribute__((visibility("default"))) Error : public std::exception {
  public:
    Error(SourceLocation where, std::string text);
    ~Error() override;
    const char *what() const noexcept override;
    static int live; // constructed and not yet destroyed

  private:
    std::string text_;
    std::string where_;
};

class __attribute__((visibility("default"))) OutOfMemoryError : public Error {
  public:
    using Error::Error;
    const char *what() const noexcept override;
};
} // namespace c10
