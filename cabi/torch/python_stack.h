// Where in a Python program the calling thread is, by the interpreter's own functions, found by name: this library is
// built without Python, and works where there is none.
#ifndef PENSTOCK_TORCH_PYTHON_STACK_H
#define PENSTOCK_TORCH_PYTHON_STACK_H

#include <string>
#include <vector>

namespace penstock {

struct CodeText {
    std::string file, name;
};

// A line of a frame. The code is a Python object of which a reference is held.
struct Place {
    void *code;
    int line;
};

// The frames of the calling thread, the innermost first; none where Python does not know it. It takes the interpreter's lock,
// as PyTorch does at the same places, so the caller holds no lock that somebody who has that one may wait for.
class PythonStack {
public:
    // Without wanted it has no frames.
    explicit PythonStack(bool wanted);
    ~PythonStack();
    PythonStack(const PythonStack &) = delete;
    PythonStack &operator=(const PythonStack &) = delete;

    const std::vector<Place> &places() const { return places_; }
    CodeText text(const Place &place) const;
    // Another reference to a place's code, for who keeps it.
    void keep(const Place &place) const;

private:
    bool locked_ = false;
    int state_ = 0;
    std::vector<Place> places_;
};

// Gives references back that were kept. The caller holds no lock.
void release_code(const std::vector<void *> &codes);

} // namespace penstock

#endif
