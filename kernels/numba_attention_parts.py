# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""What decode and prefill share: finding keys, the two products, and merging what was found in stretches of keys.

Products take four rows (a query token and a head) at a time, so that a number that was read is used four times, and
their inner loops go over the contiguous numbers of a head, which is what a compiler turns into vector code.
"""

import numpy as np

from .numba_numbers import exp2, inner, narrow, widen

LOWEST = np.float32(-1e30)  # a score of nothing


@inner
def side_by_side(table, block, position, stop):
    """The row of a KV head's memory with the key at `position`, and how many from there to `stop` are in its block."""
    block_size, block_stride = block
    slot = position % block_size
    return table[position // block_size] * block_stride + slot, min(block_size - slot, stop - position)


@inner
def score(scores, queries, keys):
    """scores [rows, keys] = queries [rows, head_dim] · keys [keys, head_dim], of a multiple of four rows."""
    for row in range(0, len(queries), 4):
        query0, query1, query2, query3 = queries[row], queries[row + 1], queries[row + 2], queries[row + 3]
        for k in range(len(keys)):
            key = keys[k]
            sum0 = sum1 = sum2 = sum3 = np.float32(0)
            for d in range(len(key)):
                number = widen(key[d])
                sum0 += query0[d] * number
                sum1 += query1[d] * number
                sum2 += query2[d] * number
                sum3 += query3[d] * number
            scores[row, k], scores[row + 1, k], scores[row + 2, k], scores[row + 3, k] = sum0, sum1, sum2, sum3


@inner
def add_values(results, weights, values):
    """results [rows, head_dim] += weights [rows, values] · values [values, head_dim], of a multiple of four rows."""
    fours = len(values) // 4 * 4
    for row in range(0, len(results), 4):
        result0, result1, result2, result3 = results[row], results[row + 1], results[row + 2], results[row + 3]
        weight0, weight1, weight2, weight3 = weights[row], weights[row + 1], weights[row + 2], weights[row + 3]
        for k in range(0, fours, 4):
            value0, value1, value2, value3 = values[k], values[k + 1], values[k + 2], values[k + 3]
            a0, a1, a2, a3 = weight0[k], weight0[k + 1], weight0[k + 2], weight0[k + 3]
            b0, b1, b2, b3 = weight1[k], weight1[k + 1], weight1[k + 2], weight1[k + 3]
            c0, c1, c2, c3 = weight2[k], weight2[k + 1], weight2[k + 2], weight2[k + 3]
            d0, d1, d2, d3 = weight3[k], weight3[k + 1], weight3[k + 2], weight3[k + 3]
            for d in range(len(result0)):
                v0, v1, v2, v3 = widen(value0[d]), widen(value1[d]), widen(value2[d]), widen(value3[d])
                result0[d] += a0 * v0 + a1 * v1 + a2 * v2 + a3 * v3
                result1[d] += b0 * v0 + b1 * v1 + b2 * v2 + b3 * v3
                result2[d] += c0 * v0 + c1 * v1 + c2 * v2 + c3 * v3
                result3[d] += d0 * v0 + d1 * v1 + d2 * v2 + d3 * v3
        for k in range(fours, len(values)):
            value = values[k]
            for d in range(len(result0)):
                number = widen(value[d])
                result0[d] += weight0[k] * number
                result1[d] += weight1[k] * number
                result2[d] += weight2[k] * number
                result3[d] += weight3[k] * number


@inner
def merge(out, found):
    """Result [n, group, head_dim] from `found` [splits, n · group, …]: a split counts as its largest score says.

    There is at least one split, and the first one's numbers are lost.
    """
    num_tokens, group, head_dim = out.shape
    for row in range(num_tokens * group):
        largest, total = LOWEST, np.float32(0)
        for split in range(len(found)):
            largest = max(largest, found[split, row, head_dim + 1])
        numbers, result = found[0, row], out[row // group, row % group]
        for split in range(len(found)):
            part = found[split, row]
            share = exp2(part[head_dim + 1] - largest)
            total += share * part[head_dim]
            for d in range(head_dim):
                numbers[d] = share * part[d] + (numbers[d] if split else np.float32(0))
        for d in range(head_dim):
            result[d] = narrow(numbers[d] / total, result)
