package inspect

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNumbersAsText(t *testing.T) {
	assert.Equal(t, "0", grouped(0))
	assert.Equal(t, "999", grouped(999))
	assert.Equal(t, "-1,000", grouped(-1000))
	assert.Equal(t, "-999", grouped(-999))
	assert.Equal(t, "16,375,728,128", grouped(int64(16_375_728_128)))
	assert.Equal(t, "1023 B", iec(1023))
	assert.Equal(t, "1.00 KiB", iec(1024))
	assert.Equal(t, "30.50 GiB", iec(32_751_456_256))
	assert.Equal(t, "5.24 GFLOP", flop(5_237_637_120))
	assert.Equal(t, "17.27 %", percent(1727, 10000))
	assert.Equal(t, "-", percent(0, 0))
	assert.Equal(t, "1 shard", plural(1, "shard"))
	assert.Equal(t, "5,466 tensors", plural(5466, "tensor"))
}

func TestForeignTextIsQuoted(t *testing.T) {
	assert.Equal(t, "model.norm.weight", plain("model.norm.weight"))
	assert.Equal(t, `"\x1b[2J"`, plain("\x1b[2J"))
	assert.Equal(t, `"a\nb"`, plain("a\nb"))
	assert.Equal(t, `"\xff"`, plain("\xff"))
	assert.Equal(t, `""`, plain(""))
}

func TestTableAligns(t *testing.T) {
	x := table{align: "lrl", indent: "> "}
	x.add("a", "1", "é")
	x.add("bbb", "1000", "")
	var out strings.Builder
	require.NoError(t, x.write(&out))
	assert.Equal(t, "> a       1  é\n> bbb  1000\n", out.String())
}
