#include "fake_c10.h"

namespace c10 {
int Error::live = 0;
Error::Error(SourceLocation where, std::string text) : text_(std::move(text)), where_(where.file) { live++; }
Error::~Error() { live--; }
const char *Error::what() const noexcept { return text_.c_str(); }
const char *OutOfMemoryError::what() const noexcept { return Error::what(); }
} // namespace c10
