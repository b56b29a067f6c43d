package safetensors

// Files that are no valid safetensors files, each with what its error must say.
// Numbers in the comments are rows of the table in notes/reliability.md.

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/text"
	"dsmoe/text/problem"
)

// pack makes a file of a header and n data bytes.
func pack(header string, n int) []byte {
	b := make([]byte, 8+len(header)+n)
	binary.LittleEndian.PutUint64(b, uint64(len(header)))
	copy(b[8:], header)
	return b
}

// entryOf makes one tensor's JSON.
func entryOf(name, dtype, shape, offsets string) string {
	return fmt.Sprintf(`%q:{"dtype":%q,"shape":%s,"data_offsets":%s}`, name, dtype, shape, offsets)
}

func obj(parts ...string) string { return "{" + strings.Join(parts, ",") + "}" }

// one makes a file with the tensor w and 16 data bytes.
func one(dtype, shape, offsets string) []byte {
	return pack(obj(`"w":{"dtype":`+dtype+`,"shape":`+shape+`,"data_offsets":`+offsets+`}`), 16)
}

func prefixed(n uint64, rest string) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, n), rest...)
}

type hostile struct {
	name   string
	data   []byte
	tensor string // that the error must name; empty for none
	want   string // part of the error
}

const valid = `"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}`

var hostiles = sync.OnceValue(func() []hostile {
	var all []hostile
	add := func(row, tensor, want string, data []byte) {
		all = append(all, hostile{row, data, tensor, want})
	}
	addLengths(add)
	addLookalikes(add)
	addJSON(add)
	addDuplicates(add)
	addFields(add)
	addSizes(add)
	addOffsets(add)
	addNames(add)
	return all
})

type adder = func(row, tensor, want string, data []byte)

func addLengths(add adder) { // 1-3
	add("empty", "", "file is empty", nil)
	for n := 1; n < 8; n++ {
		add(fmt.Sprintf("%d bytes", n), "", "too few", []byte("abcdefgh")[:n])
	}
	for name, n := range map[string]uint64{"2^31": 1 << 31, "2^32": 1 << 32, "2^63": 1 << 63, "2^64-1": math.MaxUint64,
		"2^64-8": math.MaxUint64 - 7, "limit+1": maxHeader + 1, "2^63-1": math.MaxInt64} {
		add("length "+name, "", "more than the limit", prefixed(n, "{}"))
	}
	add("length at limit, no file", "", "cut off inside its header", prefixed(maxHeader, "{}"))
	add("length 0", "", "header is empty", prefixed(0, "{}"))
	add("length 0, nothing else", "", "are zero", prefixed(0, ""))
	good := obj(valid)
	add("length long by 1", "", "cut off inside its header", prefixed(uint64(len(good)+1), good))
	add("length short by 1", "", "ends too early", append(prefixed(uint64(len(good)-1), good), make([]byte, 16)...))
	add("length short by 1, nothing left", "", "cut off inside its header", prefixed(640, good))
	add("only the length", "", "cut off inside its header", prefixed(640, ""))
}

func addLookalikes(add adder) {
	lfs := "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 8590539528\n"
	add("lfs pointer", "", "is a Git LFS pointer", []byte(lfs))
	add("html", "", "is an HTML page", []byte("<!DOCTYPE html>\n<html><body>Not found</body></html>"))
	add("html after spaces", "", "is an HTML page", []byte("  \n<HTML><head></head></HTML>"))
	add("xml", "", "is an XML document", []byte(`<?xml version="1.0"?><Error/>`))
	add("json", "", "is a JSON text", []byte(`{"error":"Repository not found"}`))
	add("zip", "", "is a zip archive", []byte("PK\x03\x04\x00\x00\x08\x08\x00\x00\x00\x00"))
	add("pickle", "", "is a Python pickle", []byte("\x80\x02}q\x00(X\x01\x00\x00\x00a"))
	add("gguf", "", "is a GGUF file", []byte("GGUF\x03\x00\x00\x00\x01\x00\x00\x00"))
	add("gzip", "", "is a gzip file", []byte("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x4b"))
	add("hdf5", "", "is an HDF5 file", []byte("\x89HDF\r\n\x1a\n\x00\x00"))
	add("zeros", "", "first 4096 bytes are zero", make([]byte, 9000))
	add("random text", "", "not a safetensors file", []byte("hello, world: what a nice day"))
}

func addJSON(add adder) { // 4-8, 11-14, 29
	add("bad UTF-8 in name", "", "UTF-8", pack("{\"w\xff\":{}}", 0))
	add("bad UTF-8 in metadata", "", "UTF-8", pack("{\"__metadata__\":{\"a\":\"\xc3(\"}}", 0))
	add("bad UTF-8 in key", "w", "UTF-8", pack("{\"w\":{\"\x80\":1}}", 0))
	add("lone surrogate", "", "surrogate", pack(`{"\ud800":{}}`, 0))
	add("lone low surrogate in metadata", "", "surrogate", pack(`{"__metadata__":{"a":"\udc00"}}`, 0))
	for name, text := range map[string]string{"null": "null", "array": "[]", "string": `"a"`, "number": "1", "true": "true"} {
		add("header is "+name, "", "not an object", pack(text, 0))
	}
	add("spaces only", "", "no JSON object", pack("        ", 0))
	add("trailing garbage", "", "after the end of the header", pack("{}x", 0))
	add("two objects", "", "after the end of the header", pack("{}{}", 0))
	add("NUL padding", "", "byte 0x00 after the end", pack("{}\x00\x00\x00\x00\x00\x00", 0))
	add("comma after the end", "", "after the end of the header", pack("{},", 0))
	add("BOM", "", "not valid JSON", pack("\ufeff{}", 0))
	add("unterminated", "", "ends too early", pack(`{"w"`, 0))
	add("unterminated string", "", "ends too early", pack(`{"w`, 0))
	add("trailing comma", "w", "not valid JSON", pack(`{"w":{"dtype":"F32",}}`, 0))
	add("comment", "", "not valid JSON", pack(`{/**/}`, 0))
	add("single quotes", "", "not valid JSON", pack(`{'w':1}`, 0))
	add("name is a number", "", "not valid JSON", pack(`{1:{}}`, 0))
	add("NaN", "w", "not valid JSON", one(`"F32"`, "[NaN]", "[0,16]"))
	add("control character in name", "", "not valid JSON", pack("{\"a\nb\":{}}", 0))
	add("deep arrays", "w", "is an array, not a number", one(`"F32"`, strings.Repeat("[", 9000)+strings.Repeat("]", 9000), "[0,16]"))
	add("deep metadata", "", "is an object, not a string", pack(`{"__metadata__":{"a":`+strings.Repeat(`{"a":`, 200)+"1"+strings.Repeat("}", 202), 0))
	add("metadata is array", "", "__metadata__ is an array", pack(`{"__metadata__":[]}`, 0))
	add("metadata is string", "", "__metadata__ is a string", pack(`{"__metadata__":"pt"}`, 0))
	add("metadata value number", "", "is a number, not a string", pack(`{"__metadata__":{"a":1}}`, 0))
	add("metadata value null", "", "is null, not a string", pack(`{"__metadata__":{"a":null}}`, 0))
	add("string too long", "", "more than 16 MiB", pack(`{"__metadata__":{"a":"`+strings.Repeat("x", 40<<20)+`"}}`, 0))
	add("inner white space too long", "", "more than 16 MiB", pack(`{"__metadata__":`+strings.Repeat(" ", 40<<20)+`{}}`, 0))
	add("metadata too large", "", "__metadata__ exceeds", pack(manyPairs(600_000), 0))
}

// manyPairs makes a header with n pairs of metadata.
func manyPairs(n int) string {
	var b strings.Builder
	b.WriteString(`{"__metadata__":{"a":""`)
	for i := range n {
		fmt.Fprintf(&b, `,"%d":""`, i)
	}
	return b.String() + "}}"
}

func addDuplicates(add adder) { // 9-12
	half := func(name, offsets string) string { return entryOf(name, "F32", "[2]", offsets) }
	add("duplicate name", "a", "occurs twice", pack(obj(half("a", "[0,8]"), half("a", "[8,16]")), 16))
	add("duplicate name, same offsets", "a", "occurs twice", pack(obj(half("a", "[0,8]"), half("a", "[0,8]")), 8))
	add("duplicate name by escape", "a", "occurs twice",
		pack(obj(half("a", "[0,8]"), `"\u0061":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}`), 16))
	add("duplicate empty tensors", "a", "occurs twice", pack(obj(entryOf("a", "F32", "[0]", "[0,0]"), entryOf("a", "F32", "[0]", "[0,0]")), 0))
	for _, key := range fieldNames {
		value := map[string]string{"dtype": `"F32"`, "shape": "[2,2]", "data_offsets": "[0,16]"}[key]
		add("duplicate "+key, "w", "key "+key+" occurs twice", pack(strings.Replace(obj(valid), "{\"dtype", `{"`+key+`":`+value+`,"dtype`, 1), 16))
	}
	add("duplicate key by escape", "w", "occurs twice", pack(strings.Replace(obj(valid), "{\"dtype", `{"\u0064type":"F32","dtype`, 1), 16))
	add("duplicate __metadata__", "", "__metadata__ occurs twice", pack(`{"__metadata__":{},"__metadata__":{}}`, 0))
	add("duplicate __metadata__ null", "", "__metadata__ occurs twice", pack(`{"__metadata__":null,"__metadata__":{}}`, 0))
	add("duplicate __metadata__ by escape", "", "__metadata__ occurs twice", pack(`{"__metadata__":{},"\u005f_metadata__":{}}`, 0))
	add("duplicate metadata key", "", "key a occurs twice", pack(`{"__metadata__":{"a":"1","a":"1"}}`, 0))
}

func addFields(add adder) { // 15-20
	add("missing dtype", "w", "dtype is missing", pack(`{"w":{"shape":[],"data_offsets":[0,4]}}`, 4))
	add("missing shape", "w", "shape is missing", pack(`{"w":{"dtype":"F32","data_offsets":[0,4]}}`, 4))
	add("missing data_offsets", "w", "data_offsets is missing", pack(`{"w":{"dtype":"F32","shape":[]}}`, 4))
	add("empty entry", "w", "dtype is missing", pack(`{"w":{}}`, 0))
	add("unknown key", "w", "unknown key extra", pack(strings.Replace(obj(valid), `{"dtype`, `{"extra":1,"dtype`, 1), 16))
	add("key in other case", "w", "unknown key Dtype", pack(strings.Replace(obj(valid), "dtype", "Dtype", 1), 16))
	add("entry is array", "w", "entry is an array", pack(`{"w":["F32",[2,2],[0,16]]}`, 16))
	add("entry is null", "w", "entry is null", pack(`{"w":null}`, 0))
	for name, dtype := range map[string]string{"unknown": `"F128"`, "lower case": `"f32"`, "of GGUF": `"Q8_0"`, "empty": `""`, "invalid": `"invalid"`, "with NUL": `"F32\u0000"`} {
		add("dtype "+name, "w", "unknown dtype", one(dtype, "[2,2]", "[0,16]"))
	}
	for name, dtype := range map[string]string{"null": "null", "number": "4", "object": `{"F32":null}`, "array": `["F32"]`} {
		add("dtype is "+name, "w", "not a string", one(dtype, "[2,2]", "[0,16]"))
	}
	for _, dim := range []string{"-1", "-0", "4.0", "1e1", "0.5", "-1e400"} {
		add("dim "+dim, "w", "not a plain non-negative integer", one(`"F32"`, "["+dim+"]", "[0,16]"))
	}
	for _, dim := range []string{`"4"`, "null", "{}", "[4]", "true"} {
		add("dim "+dim, "w", "not a number", one(`"F32"`, "["+dim+"]", "[0,16]"))
	}
	for _, dim := range []string{"18446744073709551616", "9223372036854775808", "1099511627777", strings.Repeat("9", 1000)} {
		add("dim "+dim[:4], "w", "exceeds the limit", one(`"F32"`, "["+dim+",0]", "[0,0]"))
	}
	for _, shape := range []string{"null", "4", `"[4]"`, "{}"} {
		add("shape "+shape, "w", "shape is", one(`"F32"`, shape, "[0,16]"))
	}
	for _, offsets := range []string{"null", "16", "{}", `"0,16"`} {
		add("offsets "+offsets, "w", "data_offsets is", one(`"F32"`, "[2,2]", offsets))
	}
	for _, offsets := range []string{"[]", "[0]", "[0,16,16]"} {
		add("offsets "+offsets, "w", "must be two numbers", one(`"F32"`, "[2,2]", offsets))
	}
}

func addSizes(add adder) { // 21-24, 31
	add("elements overflow", "w", "overflows", one(`"F32"`, "[1099511627776,1099511627776]", "[0,16]"))
	add("elements wrap to 4", "w", "overflows", one(`"F32"`, "[4294967296,4294967296,4]", "[0,16]"))
	add("bytes overflow", "w", "overflows", one(`"F64"`, "[1099511627776,4194304]", "[0,16]"))
	add("overflow before zero", "w", "overflows", one(`"F32"`, "[4294967296,4294967296,0]", "[0,0]"))
	add("half a byte", "w", "do not fill whole bytes", one(`"F4"`, "[3]", "[0,2]"))
	add("too few bytes", "w", "needs 16", one(`"F32"`, "[2,2]", "[0,12]"))
	add("too many bytes", "w", "needs 8", one(`"F16"`, "[2,2]", "[0,16]"))
	add("empty with bytes", "w", "needs 0", one(`"F32"`, "[0]", "[0,16]"))
	add("scalar without bytes", "w", "needs 4", one(`"F32"`, "[]", "[0,0]"))
	add("rank 17", "w", "more than 16 dimensions", one(`"F32"`, "[4"+strings.Repeat(",1", 16)+"]", "[0,16]"))
	add("rank 100000", "w", "more than 16 dimensions", one(`"F32"`, "[4"+strings.Repeat(",1", 99_999)+"]", "[0,16]"))
}

func addOffsets(add adder) { // 25-27
	f := func(name, offsets string) string { return entryOf(name, "U8", "[8]", offsets) }
	add("reversed", "w", "end before they begin", one(`"F32"`, "[2,2]", "[16,0]"))
	add("negative offset", "w", "not a plain", one(`"F32"`, "[2,2]", "[-16,0]"))
	add("offset 2^63", "w", "exceeds the limit", one(`"F32"`, "[2,2]", "[9223372036854775792,9223372036854775808]"))
	add("hole at start", "a", "a hole of 8 bytes", pack(obj(f("a", "[8,16]")), 16))
	add("hole in the middle", "b", "a hole of 4 bytes", pack(obj(f("a", "[0,8]"), f("b", "[12,20]")), 20))
	add("overlap", "b", "an overlap of 8 bytes", pack(obj(f("a", "[0,8]"), f("b", "[0,8]")), 8))
	add("overlap by 1", "b", "an overlap of 1 bytes", pack(obj(f("a", "[0,8]"), f("b", "[7,15]")), 15))
	add("all at the far end", "a", "a hole", pack(obj(f("a", "[4611686018427387896,4611686018427387904]")), 8))
	add("empty tensor past the end", "b", "a hole", pack(obj(f("a", "[0,8]"), entryOf("b", "U8", "[0]", "[9,9]")), 8))
	add("empty tensor inside", "b", "an overlap", pack(obj(f("a", "[0,8]"), entryOf("b", "U8", "[0]", "[4,4]"), f("c", "[8,16]")), 16))
	add("truncated by 1", "b", "1 byte of its 16 bytes of data are missing", pack(obj(f("a", "[0,8]"), f("b", "[8,16]")), 15))
	add("truncated to nothing", "a", "16 bytes of its 16 bytes of data are missing", pack(obj(f("a", "[0,8]"), f("b", "[8,16]")), 0))
	add("truncated, out of order", "b", "3 bytes of its 16 bytes of data are missing", pack(obj(f("b", "[8,16]"), f("a", "[0,8]")), 13))
	add("trailing byte", "", "1 byte too many, behind the last tensor, a", pack(obj(f("a", "[0,8]")), 9))
	add("data without tensors", "", "8 bytes too many", pack("{}", 8))
	wrap := make([]string, 8) // their sizes add up to just below 2^64
	for i := range wrap {
		begin := uint64(i) * (1<<61 - 1)
		wrap[i] = entryOf(fmt.Sprintf("t%d", i), "U8", "[1099511627776,2097151]", fmt.Sprintf("[%d,%d]", begin, begin+2097151<<40))
	}
	add("sum of ends wraps", "t2", "exceeds the limit", pack(obj(wrap...), 8))
	var far []string
	for i := range uint64(5) { // 2^60 bytes each
		far = append(far, entryOf(fmt.Sprintf("t%d", i), "U8", "[1099511627776,1048576]", fmt.Sprintf("[%d,%d]", i<<60, (i+1)<<60)))
	}
	add("ends at 2^62", "t0", "of data are missing", pack(obj(far[:4]...), 8))
	add("ends past 2^62", "t4", "exceeds the limit", pack(obj(far...), 8))
}

func addNames(add adder) { // 30
	bad := func(quoted string) []byte {
		return pack(`{`+quoted+`:{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}`, 16)
	}
	add("empty name", "", "name is empty", bad(`""`))
	add("NUL in name", "", "cannot be printed", bad(`"a\u0000b"`))
	add("terminal escape in name", "", "cannot be printed", bad(`"a\u001b[31m"`))
	add("newline in name", "", "cannot be printed", bad(`"a\nb"`))
	add("direction override in name", "", "cannot be printed", bad(`"a\u202eb"`))
	add("long name", "", "513 bytes, more than the limit", bad(`"`+strings.Repeat("n", 513)+`"`))
	add("1 MB name", "", "more than the limit", bad(`"`+strings.Repeat("n", 1<<20)+`"`))
}

func TestHostileHeaders(t *testing.T) {
	all := hostiles()
	require.Greater(t, len(all), 80)
	for _, c := range all {
		t.Run(c.name, func(t *testing.T) {
			_, err := readHeader(bytes.NewReader(c.data), int64(len(c.data)), "dir/model.safetensors")
			require.Error(t, err)
			var refused *problem.Error
			require.ErrorAs(t, err, &refused)
			require.Equal(t, "dir/model.safetensors", refused.Path)
			require.Contains(t, err.Error(), "dir/model.safetensors: ")
			require.Contains(t, err.Error(), c.want)
			if c.tensor != "" {
				require.Equal(t, c.tensor, refused.Problems[0].Tensor)
			}
			requireOneLine(t, err.Error())
		})
	}
}

// requireOneLine demands text that is safe to print: short, and no controls.
func requireOneLine(t *testing.T, line string) {
	t.Helper()
	require.Less(t, len(line), 1000)
	require.True(t, text.Printable(line), "%q", line)
}
