// Memory that starts where a cache line does: vectors that straddle two lines take twice the time.

#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace growpage {

template <typename T>
struct LineAllocator {
    using value_type = T;
    static constexpr std::align_val_t LINE_BYTES{64};

    LineAllocator() = default;
    template <typename Other>
    LineAllocator(const LineAllocator<Other>&) {}

    T* allocate(std::size_t count) {
        return static_cast<T*>(::operator new(count * sizeof(T), LINE_BYTES));
    }
    void deallocate(T* memory, std::size_t) { ::operator delete(memory, LINE_BYTES); }

    bool operator==(const LineAllocator&) const { return true; }
};

template <typename T>
using Aligned = std::vector<T, LineAllocator<T>>;

}  // namespace growpage
