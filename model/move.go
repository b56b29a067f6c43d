package model

// Move is data movement: the values of the result are values of the operands, unchanged.
// An arithmetic with several numbers per value moves each of them alike.
type Move struct {
	Shape []int // shape of the result

	parts int                      // number of consecutive parts of the result
	part  func(i int, f func(Run)) // yields the runs of part i
}

// Run is a run of values of the result: value To+i of the result is value From + i·Step of
// the operand, for i < N. All are row-major positions.
type Run struct {
	Operand int // index of the operand
	To      int // position in the result
	From    int // position in the operand
	Step    int // distance between values of the operand
	N       int // number of values
}

// Each calls f with all runs, part by part. Every value of the result is in one run.
func (m *Move) Each(f func(Run)) {
	for i := range m.parts {
		m.part(i, f)
	}
}

// moveRun moves the values of one run.
func moveRun[T any](dst, x []T, r Run) {
	if r.Step == 1 {
		copy(dst[r.To:r.To+r.N], x[r.From:])
		return
	}
	for i := range r.N {
		dst[r.To+i] = x[r.From+i*r.Step]
	}
}

// splitHeads cuts rows [batch, seq, heads·width] into heads, and takes the columns from … to-1 of
// each head: [batch, heads, seq, to-from].
func splitHeads(in *Input, heads, width, from, to int) *Move {
	n := to - from
	return &Move{[]int{in.Batch, heads, in.Seq, n}, in.Batch * heads, func(i int, f func(Run)) {
		first := i/heads*in.Seq*heads*width + i%heads*width + from
		for t := range in.Seq {
			f(Run{To: (i*in.Seq + t) * n, From: first + t*heads*width, Step: 1, N: n})
		}
	}}
}

// splitHeadsT is splitHeads with the last two axes of the result swapped: [batch, heads,
// to-from, seq].
func splitHeadsT(in *Input, heads, width, from, to int) *Move {
	n := to - from
	return &Move{[]int{in.Batch, heads, n, in.Seq}, in.Batch * heads, func(i int, f func(Run)) {
		first := i/heads*in.Seq*heads*width + i%heads*width + from
		for c := range n {
			f(Run{To: (i*n + c) * in.Seq, From: first + c, Step: heads * width, N: in.Seq})
		}
	}}
}

// mergeHeads puts blocks of queries, [batch, heads, n, width] each, one after the other, and their
// heads side by side: [batch, seq, heads·width]. Each block has block queries, the last one fewer.
func mergeHeads(in *Input, heads, width, block int) *Move {
	return &Move{[]int{in.Batch, in.Seq, heads * width}, in.Batch * heads, func(i int, f func(Run)) {
		first := i/heads*in.Seq*heads*width + i%heads*width
		for t := range in.Seq {
			n := min(block, in.Seq-t/block*block)
			f(Run{Operand: t / block, To: first + t*heads*width, From: (i*n + t%block) * width, Step: 1, N: width})
		}
	}}
}

// joinHeads appends to each row of a [batch, heads, seq, width] the row of b [batch, 1, seq,
// shared] at the same position, which all heads share: [batch, heads, seq, width+shared].
func joinHeads(in *Input, heads, width, shared int) *Move {
	n := width + shared
	return &Move{[]int{in.Batch, heads, in.Seq, n}, in.Batch * heads, func(i int, f func(Run)) {
		for t := range in.Seq {
			row := i*in.Seq + t
			f(Run{To: row * n, From: row * width, Step: 1, N: width})
			f(Run{Operand: 1, To: row*n + width, From: (i/heads*in.Seq + t) * shared, Step: 1, N: shared})
		}
	}}
}

// TakeColumns takes the columns from … to-1 of rows [batch, seq, width].
func TakeColumns(in *Input, width, from, to int) *Move {
	m := splitHeads(in, 1, width, from, to)
	m.Shape = []int{in.Batch, in.Seq, to - from}
	return m
}

// joinColumns puts rows of a [batch, seq, width] and of b [batch, seq, other] side by side:
// [batch, seq, width+other].
func joinColumns(in *Input, width, other int) *Move {
	m := joinHeads(in, 1, width, other)
	m.Shape = []int{in.Batch, in.Seq, width + other}
	return m
}

// TransposeLast exchanges the last two axes of a shape, which are of one size.
func TransposeLast(shape []int) *Move {
	n, matrices := shape[len(shape)-1], 1
	for _, size := range shape[:len(shape)-2] {
		matrices *= size
	}
	return &Move{shape, matrices, func(i int, f func(Run)) {
		for r := range n {
			f(Run{To: (i*n + r) * n, From: i*n*n + r, Step: n, N: n})
		}
	}}
}

// takeFirst takes the first in.Seq rows of each sequence [batch, seq, width].
func takeFirst(in *Input, seq, width int) *Move {
	return &Move{[]int{in.Batch, in.Seq, width}, in.Batch, func(i int, f func(Run)) {
		f(Run{To: i * in.Seq * width, From: i * seq * width, Step: 1, N: in.Seq * width})
	}}
}

// takeRows takes the given rows of width values, in that order: [len(rows), width].
func takeRows(rows []int, width int) *Move {
	return &Move{[]int{len(rows), width}, 1, func(_ int, f func(Run)) {
		for i, row := range rows {
			f(Run{To: i * width, From: row * width, Step: 1, N: width})
		}
	}}
}

// rowsFrom takes n rows of width values, from row first on: [n, width].
func rowsFrom(first, n, width int) *Move {
	return &Move{[]int{n, width}, 1, func(_ int, f func(Run)) {
		f(Run{From: first * width, Step: 1, N: n * width})
	}}
}

// gather takes the columns idx [tokens, k] of each row of width values.
func gather(idx []int, k, width int) *Move {
	return &Move{[]int{len(idx) / k, k}, 1, func(_ int, f func(Run)) {
		for i, column := range idx {
			f(Run{To: i, From: i/k*width + column, Step: 1, N: 1})
		}
	}}
}

// OrderColumns gives column i of rows of a shape the values of column order[i].
func OrderColumns(shape, order []int) *Move {
	rows := 1
	for _, n := range shape[:len(shape)-1] {
		rows *= n
	}
	return &Move{shape, rows, func(row int, f func(Run)) {
		for i, from := range order {
			f(Run{To: row*len(order) + i, From: row*len(order) + from, Step: 1, N: 1})
		}
	}}
}

// splitRotated cuts rows [batch, seq, heads·width] into heads, [batch, heads, seq, width], with the first
// rotated columns of each head last: the even ones before the odd ones if they are pairs.
func splitRotated(in *Input, heads, width, rotated int, pairs bool) *Move {
	return &Move{[]int{in.Batch, heads, in.Seq, width}, in.Batch * heads, func(i int, f func(Run)) {
		for t := range in.Seq {
			to, from := (i*in.Seq+t)*width, ((i/heads*in.Seq+t)*heads+i%heads)*width
			f(Run{To: to, From: from + rotated, Step: 1, N: width - rotated})
			step, n := 1, rotated
			if pairs {
				step, n = 2, rotated/2
				f(Run{To: to + width - n, From: from + 1, Step: step, N: n})
			}
			f(Run{To: to + width - rotated, From: from, Step: step, N: n})
		}
	}}
}

// joinRotated puts heads [batch, heads, seq, width] side by side, [batch, seq, heads·width], with the
// last rotated columns of each head first.
func joinRotated(in *Input, heads, width, rotated int) *Move {
	return &Move{[]int{in.Batch, in.Seq, heads * width}, in.Batch * heads, func(i int, f func(Run)) {
		for t := range in.Seq {
			to, from := ((i/heads*in.Seq+t)*heads+i%heads)*width, (i*in.Seq+t)*width
			f(Run{To: to, From: from + width - rotated, Step: 1, N: rotated})
			f(Run{To: to + rotated, From: from, Step: 1, N: width - rotated})
		}
	}}
}

// repeatRows repeats each row of [batch, seq, width]: [batch, seq, times, width].
func repeatRows(in *Input, times, width int) *Move {
	return &Move{[]int{in.Batch, in.Seq, times, width}, in.Batch * in.Seq, func(t int, f func(Run)) {
		for i := range times {
			f(Run{To: (t*times + i) * width, From: t * width, Step: 1, N: width})
		}
	}}
}

// joinGroups puts the rows of several operands [batch, seq, width] side by side, as groups:
// [batch, seq, groups, width].
func joinGroups(in *Input, groups, width int) *Move {
	return &Move{[]int{in.Batch, in.Seq, groups, width}, in.Batch * in.Seq, func(t int, f func(Run)) {
		for g := range groups {
			f(Run{Operand: g, To: (t*groups + g) * width, From: t * width, Step: 1, N: width})
		}
	}}
}

// joinBlocks puts the rows of several operands [batch, seq, width] side by side: [batch, seq, blocks·width].
func joinBlocks(in *Input, blocks, width int) *Move {
	m := joinGroups(in, blocks, width)
	m.Shape = []int{in.Batch, in.Seq, blocks * width}
	return m
}

// joinKeys puts the tokens from … to-1 of keys [batch, 1, seq, width] before entries [batch, 1, entries, width]:
// [batch, 1, to-from+entries, width].
func joinKeys(in *Input, from, to, entries, width int) *Move {
	n := to - from + entries
	return &Move{[]int{in.Batch, 1, n, width}, in.Batch, func(b int, f func(Run)) {
		f(Run{To: b * n * width, From: (b*in.Seq + from) * width, Step: 1, N: (to - from) * width})
		if entries > 0 {
			f(Run{Operand: 1, To: (b*n + to - from) * width, From: b * entries * width, Step: 1, N: entries * width})
		}
	}}
}
