#include "history.h"
#include "penstock_torch.h"
#include "python_stack.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <map>
#include <mutex>
#include <pthread.h>
#include <unordered_map>
#include <vector>

namespace penstock {

std::atomic<Stacks> history_stacks{Stacks::Off};

namespace {

// In the order of the bits of penstock_torch_record_history.
enum Action { Alloc, FreeRequested, FreeCompleted, OutOfMemory, Snapshot, Annotate };

struct Entry {
    Action action;
    int device;
    uint32_t stack, metadata;
    uint64_t address; // of OutOfMemory: the bytes that are free
    int64_t bytes;
    uint64_t stream;
    int64_t microseconds;
};

struct Frame {
    uint32_t code;
    int line;
    bool operator<(const Frame &o) const { return code != o.code ? code < o.code : line < o.line; }
};

// What the program says of whatever this thread allocates and frees; NULL: nothing. A thread that ends leaves it: what else
// ends with it may free memory.
thread_local char *user_metadata;

// Codes, frames, stacks and texts have numbers: a job allocates at the same places again and again. Stack 0 has no frames.
struct Places {
    std::unordered_map<void *, uint32_t> codes; // references to them are held
    std::vector<CodeText> texts;
    std::map<Frame, uint32_t> frames;
    std::map<std::vector<uint32_t>, uint32_t> stacks{{{}, 0}};
    std::map<std::string, uint32_t> metadata;
};

int64_t microseconds_now() {
    timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return int64_t{t.tv_sec} * 1000000 + t.tv_nsec / 1000;
}

struct History {
    std::mutex mutex;
    int64_t most = 0; // entries
    unsigned skipped = 0;
    std::deque<Entry> entries;
    std::unordered_map<uint64_t, uint32_t> live; // stacks, by address
    Places places;

    void trim() {
        while (static_cast<int64_t>(entries.size()) > most) entries.pop_front();
    }
    void add(Action action, uint64_t address, int64_t bytes, int device, const void *stream, uint32_t stack, const char *metadata = user_metadata) {
        if (most == 0 || skipped >> action & 1) return;
        uint32_t number = places.metadata.emplace(metadata ? metadata : "", places.metadata.size()).first->second;
        entries.push_back({action, device, stack, number, address, bytes, reinterpret_cast<uint64_t>(stream), microseconds_now()});
        trim();
    }
    uint32_t number_of(const PythonStack &stack, std::unique_lock<std::mutex> &lock);
};

// Never destroyed: threads may free memory while the process exits. A forked child has another, for somebody may have had the lock.
std::atomic<History *> current{new History};

void in_child() {
    history_stacks.store(Stacks::Off);
    current.store(new History);
}

uint32_t History::number_of(const PythonStack &stack, std::unique_lock<std::mutex> &lock) {
    const std::vector<Place> &at = stack.places();
    // First all codes are known: the interpreter is asked without the lock, for it may run something that frees memory.
    for (;;) {
        auto unknown = std::find_if(at.begin(), at.end(), [this](const Place &p) { return !places.codes.count(p.code); });
        if (unknown == at.end()) break;
        lock.unlock();
        CodeText text = stack.text(*unknown);
        lock.lock();
        if (places.codes.emplace(unknown->code, places.texts.size()).second) {
            places.texts.push_back(std::move(text));
            stack.keep(*unknown);
        }
    }
    std::vector<uint32_t> frames;
    frames.reserve(at.size());
    for (const Place &p : at) frames.push_back(places.frames.emplace(Frame{places.codes[p.code], p.line}, places.frames.size()).first->second);
    return places.stacks.emplace(std::move(frames), places.stacks.size()).first->second;
}

bool takes_stacks(Stacks of) { return history_stacks.load() >= of; }

void append_text(std::string &out, const std::string &text) {
    out += '"';
    for (unsigned char c : text) {
        if (c == '"' || c == '\\')
            (out += '\\') += static_cast<char>(c);
        else if (c < 0x20) {
            char escaped[8];
            std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
            out += escaped;
        } else
            out += static_cast<char>(c);
    }
    out += '"';
}

// A JSON list of what append writes of each.
template <typename List, typename Append> void append_list(std::string &out, const List &all, Append append) {
    out += '[';
    const char *separator = "";
    for (const auto &x : all) {
        out += separator;
        append(x);
        separator = ",";
    }
    out += ']';
}

void append_numbers(std::string &out, std::initializer_list<uint64_t> numbers) {
    append_list(out, numbers, [&out](uint64_t n) { out += std::to_string(n); });
}

// A table by number of what has the numbers.
template <typename Map> std::vector<const typename Map::key_type *> by_number(const Map &numbers) {
    std::vector<const typename Map::key_type *> table(numbers.size());
    for (const auto &x : numbers) table[x.second] = &x.first;
    return table;
}

std::string json_of(History &h, bool entries) {
    std::lock_guard<std::mutex> lock(h.mutex);
    std::string out = "{\"max_entries\":" + std::to_string(h.most) + ",\"skipped\":" + std::to_string(h.skipped) + ",\"codes\":";
    append_list(out, h.places.texts, [&out](const CodeText &t) {
        out += '[';
        append_text(out, t.file);
        out += ',';
        append_text(out, t.name);
        out += ']';
    });
    out += ",\"frames\":";
    append_list(out, by_number(h.places.frames), [&out](const Frame *f) { append_numbers(out, {f->code, static_cast<uint64_t>(std::max(f->line, 0))}); });
    out += ",\"stacks\":";
    append_list(out, by_number(h.places.stacks),
                [&out](const std::vector<uint32_t> *s) { append_list(out, *s, [&out](uint32_t frame) { out += std::to_string(frame); }); });
    out += ",\"metadata\":";
    append_list(out, by_number(h.places.metadata), [&out](const std::string *m) { append_text(out, *m); });
    out += ",\"live\":";
    append_list(out, h.live, [&out](const std::pair<const uint64_t, uint32_t> &x) { append_numbers(out, {x.first, x.second}); });
    out += ",\"entries\":";
    const std::deque<Entry> none;
    append_list(out, entries ? h.entries : none, [&out](const Entry &e) {
        append_numbers(out, {static_cast<uint64_t>(e.action), static_cast<uint64_t>(e.device), e.address, static_cast<uint64_t>(e.bytes), e.stream,
                             static_cast<uint64_t>(e.microseconds), e.stack, e.metadata});
    });
    return out += '}';
}

} // namespace

void record_malloc(const void *p, ssize_t bytes, int device, const void *stream) {
    PythonStack stack(takes_stacks(Stacks::OfLive));
    History &h = *current.load();
    std::unique_lock<std::mutex> lock(h.mutex);
    uint32_t number = h.number_of(stack, lock);
    Stacks of = history_stacks.load();
    if (of == Stacks::Off) return; // it has been switched off, and what was recorded is gone
    auto address = reinterpret_cast<uint64_t>(p);
    if (number) h.live[address] = number;
    h.add(Alloc, address, bytes, device, stream, of >= Stacks::OfMallocs ? number : 0);
}

void record_free(const void *p, ssize_t bytes, int device, const void *stream) {
    PythonStack stack(takes_stacks(Stacks::OfFrees));
    History &h = *current.load();
    std::unique_lock<std::mutex> lock(h.mutex);
    uint32_t number = h.number_of(stack, lock);
    if (!history_is_on()) return;
    auto address = reinterpret_cast<uint64_t>(p);
    h.live.erase(address);
    h.add(FreeRequested, address, bytes, device, stream, number);
    h.add(FreeCompleted, address, bytes, device, stream, number);
}

void record_out_of_memory(const Engine &e, ssize_t bytes, int device, const void *stream) {
    PythonStack stack(takes_stacks(Stacks::OfLive));
    int64_t free = stat(stats(e), "device_free_bytes", 0);
    History &h = *current.load();
    std::unique_lock<std::mutex> lock(h.mutex);
    uint32_t number = h.number_of(stack, lock);
    if (history_is_on()) h.add(OutOfMemory, static_cast<uint64_t>(free), bytes, device, stream, number);
}

} // namespace penstock

using namespace penstock;

extern "C" {

void penstock_torch_record_history(int stacks, int64_t max_entries, unsigned skipped, int clear) {
    static std::once_flag once;
    std::call_once(once, [] { pthread_atfork(nullptr, nullptr, in_child); });
    History &h = *current.load();
    std::vector<void *> codes;
    {
        std::lock_guard<std::mutex> lock(h.mutex);
        auto of = static_cast<Stacks>(stacks);
        if (clear || of == Stacks::Off) h.entries.clear();
        if (of == Stacks::Off) {
            for (const auto &x : h.places.codes) codes.push_back(x.first);
            h.places = Places();
            h.live.clear(); // what is freed from now on is not noted
        }
        h.most = max_entries, h.skipped = skipped;
        h.trim();
        history_stacks.store(of);
    }
    release_code(codes);
}

int penstock_torch_history_enabled(void) { return history_stacks.load() != Stacks::Off; }

void penstock_torch_note_snapshot(int device, int64_t bytes) {
    if (!history_is_on()) return;
    PythonStack stack(takes_stacks(Stacks::OfLive));
    History &h = *current.load();
    std::unique_lock<std::mutex> lock(h.mutex);
    uint32_t number = h.number_of(stack, lock);
    if (history_is_on()) h.add(Snapshot, 0, bytes, device, nullptr, number);
}

void penstock_torch_set_metadata(const char *text) {
    std::free(user_metadata);
    user_metadata = *text ? strdup(text) : nullptr;
}

void penstock_torch_annotate(uint64_t address, int device, const char *text) {
    if (!history_is_on()) return;
    PythonStack stack(takes_stacks(Stacks::OfMallocs));
    History &h = *current.load();
    std::unique_lock<std::mutex> lock(h.mutex);
    uint32_t number = h.number_of(stack, lock);
    if (history_is_on()) h.add(Annotate, address, 0, device, nullptr, number, text);
}

long penstock_torch_history(char *json, size_t capacity, int entries) {
    std::string text = json_of(*current.load(), entries != 0);
    if (json && text.size() < capacity) std::memcpy(json, text.c_str(), text.size() + 1);
    return static_cast<long>(text.size());
}
}
