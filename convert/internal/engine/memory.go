package engine

// The memory that an execution takes, and how its work is cut to fit.

import (
	"fmt"
	"slices"

	"dsmoe/convert/internal/disk"
	"dsmoe/convert/operation"
	"dsmoe/convert/plan"
	"dsmoe/convert/remote"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// Memory beside the plan, in bytes.
const (
	// program is the memory of the program before it does anything: code and the tables of Go's runtime.
	program = 16 << 20
	// leastBuffers is the least memory for buffers with which a few workers can run.
	leastBuffers = 12 << 20
	// perState is the memory of a tensor as a span and of its state: bytes written, losses and proof.
	perState = 172
	// perSegment is the memory of a segment's hash and losses, unless the segment is a plain copy.
	perSegment = 96 + 64
	// perPart is the memory of a part of an upload: its number and hashes.
	perPart = 200
	// partsOfWorker is the most parts that a worker keeps from being sent: the part that it writes, and the part that its
	// tensor ends in, whose rest another worker wrote.
	partsOfWorker = 2
)

// HeapLimit returns the limit of Go's heap, for debug.SetMemoryLimit, with which the program
// stays below memory.
func HeapLimit(memory int64) int64 { return usable(memory) - program }

// usable is the part of memory that can be planned with: the heap outgrows the live
// objects, and briefly its own limit.
func usable(memory int64) int64 { return memory - memory/8 }

const listOfTensors = "its list of tensors"

// CheckPlanning refuses a conversion whose planning takes more bytes than Memory allows.
// Memory for planning is enough for the conversion.
func (s Settings) CheckPlanning(path string, planning int64) error {
	return s.withDefaults().check(path, listOfTensors, program+planning+leastBuffers)
}

// CheckPlan refuses a plan, to be written to path, that Memory does not allow.
func (s Settings) CheckPlan(path string, p *plan.Plan) error {
	need, s := fixed(p)+leastBuffers, s.withDefaults()
	err := s.check(path, listOfTensors, need)
	if n := largestMatrix(p); err == nil && n > 0 { // half the memory is for buffers: see newShape
		err = s.check(path, "a matrix that is stored transposed or that an adapter changes", max(need+n, 2*usable(leastBuffers+n)))
	}
	if err == nil && remote.Is(path) {
		lists, ofWorker := uploads(p, s.Client)
		err = s.check(path, "an upload in parts", need+lists+ofWorker)
	}
	return err
}

// check compares the bytes that something needs with Memory.
func (s Settings) check(path, what string, need int64) error {
	if need <= usable(s.Memory) {
		return nil
	}
	const unit = 1 << 20
	need = need * 8 / 7
	return problem.New(path, fmt.Sprintf("%s does not fit in %s of memory", what, text.Bytes(s.Memory)),
		fmt.Sprintf("--max-memory %dMiB is enough", need/unit+1))
}

// fixed is the memory, in bytes, that is not free for buffers.
func fixed(p *plan.Plan) int64 {
	n := program + p.Memory() + int64(len(p.Tensors))*perState
	for i := range p.Tensors {
		if t := &p.Tensors[i]; !t.Copies() {
			n += int64(len(t.Segments)) * perSegment
		}
	}
	return n
}

// largestMatrix returns the bytes that a worker holds at most of a segment whose tensors lie in another order, or beside
// one that an adapter is merged into.
func largestMatrix(p *plan.Plan) (most int64) {
	for i := range p.Tensors {
		for _, s := range p.Tensors[i].Segments {
			n, places := int64(0), s.Places()
			for _, p := range append(places.Sides[:], places.Codes) {
				if p != nil {
					n += p.Bytes()
				}
			}
			if op, is := s.Operation.(*operation.Merge); is {
				u := op.Unit()
				n += op.Room(int64(max(maxPiece/max(u.In, u.Out), 1) * u.Elements))
			}
			most = max(most, n)
		}
	}
	return most
}

// uploads returns what uploads of a plan's files take in bytes: the lists of their parts, and the parts that a worker
// keeps from being sent.
func uploads(p *plan.Plan, c *remote.Client) (lists, ofWorker int64) {
	for _, f := range p.Files {
		part := c.PartSize(f.Size)
		lists += (f.Size/part + 1) * perPart
		ofWorker = max(ofWorker, partsOfWorker*part)
	}
	return lists, ofWorker
}

// shape is how the work is cut into workers and tiles.
type shape struct {
	workers int // tensors in work at once
	least   int // smallest tile of a larger tensor, in bytes
	limit   int // largest tile allowed, in bytes
	largest int // largest tile of the plan, in bytes
}

// The sizes of tiles in bytes. A large tensor has larger tiles: one worker does all of it,
// and has to keep up with the others.
const (
	minTile  = 1 << 20
	maxTile  = 4 << 20
	tiles    = 64        // tiles that a tensor is cut into, within these sizes
	maxPiece = 256 << 10 // source bytes in work at once: the size of a level-2 cache
)

// newShape divides half the memory, or the memory that the plan leaves if that is less,
// among workers. Each has a tile, a piece of source and room to gather one. The parts of uploads come out of all
// that the plan leaves: their memory is used again, and never garbage.
func newShape(p *plan.Plan, s Settings, uploading bool) shape {
	h := shape{least: minTile}
	left := usable(s.Memory) - fixed(p)
	room := int(min(s.Memory/2, left))
	buffers := 3 * maxPiece
	views := slices.ContainsFunc(p.Tensors, func(t plan.Tensor) bool {
		return slices.ContainsFunc(t.Segments, func(s plan.Segment) bool { return s.View != nil })
	})
	if s.Origin != "" || views {
		buffers += readAhead
	}
	buffers += int(largestMatrix(p))
	h.workers = max(min(s.IO, room/(minTile+buffers)), 1)
	if uploading {
		lists, parts := uploads(p, s.Client)
		left -= lists
		h.workers = max(min(h.workers, int(left/(minTile+int64(buffers)+parts))), 1)
		room = min(room, int(left-int64(h.workers)*parts))
	}
	h.limit = max(min(room/h.workers-buffers, maxTile)&^(disk.Block-1), disk.Block)
	return h.cut(p)
}

// ofStore is the shape of the proof of an output in a store: no parts are in memory, and tiles are as large as they may be,
// since each is a request.
func ofStore(p *plan.Plan, s Settings) shape {
	h := newShape(p, s, false)
	h.least = maxTile
	return h.cut(p)
}

// cut returns the shape with the largest tile of a plan.
func (h shape) cut(p *plan.Plan) shape {
	for i := range p.Tensors {
		h.largest = max(h.largest, h.tileBytes(p.Tensors[i].Bytes()))
	}
	return h
}

// tileBytes returns the size of the tiles of a tensor of size bytes.
func (h *shape) tileBytes(size int64) int {
	n := min(max(size/tiles, int64(h.least)), int64(h.limit), size)
	return int(n+disk.Block-1) &^ (disk.Block - 1)
}

// tileEnd returns the end of the tile that begins at byte from of the tensor of t. The tile holds whole
// units of the segments' operations.
func (h *shape) tileEnd(t *plan.Span, from int64) int64 {
	size := t.Bytes()
	end := disk.TileEnd(t.Offset+from, int64(h.tileBytes(size)), t.Offset+size) - t.Offset
	if end >= t.To { // units end at the end of a span
		return t.To
	}
	begin := int64(0) // of the segment
	for i := range t.Segments {
		s := &t.Segments[i]
		if end < begin+s.Bytes {
			unit := int64(s.Operation.Unit().Out)
			return max(end-(end-begin)%unit, min(from+unit, begin+s.Bytes))
		}
		begin += s.Bytes
	}
	return end
}

// readAhead is the bytes that a worker requests at once of a source that is not on the disk, and for views.
const readAhead = 4 << 20
