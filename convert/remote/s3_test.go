package remote_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/remote/remotetest"
)

// TestStore: listings of several pages, keys with characters that URLs escape, ranges, whatever fails meanwhile.
func TestStore(t *testing.T) {
	dir, large := model(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sub dir", "ä+=&.txt"), []byte("escaped"), 0o600))
	h := remotetest.StartStore(t, map[string]string{"models": filepath.Dir(dir)})
	h.Fail(40)
	url := "s3://models/" + filepath.Base(dir)
	d := open(t, h.Client, url+"/")
	require.Equal(t, url+"/large.bin", d.Path("large.bin"))
	names, err := d.List("")
	require.NoError(t, err)
	require.Equal(t, []string{"config.json", "empty.txt", "large.bin", "sub dir"}, names)
	require.Equal(t, "below", read(t, d, "sub dir/a%b?.txt"))
	require.Equal(t, "escaped", read(t, d, "sub dir/ä+=&.txt"))
	require.Equal(t, "", read(t, d, "empty.txt"))
	require.Equal(t, string(large), read(t, d, "large.bin"))
	_, file, err := h.Client.Open(url+"/large.bin", isFile, nil)
	require.NoError(t, err)
	require.Equal(t, "large.bin", file)
	_, _, err = h.Client.Open(url[:len(url)-1], isFile, nil)
	requireFailure(t, err, "the bucket has no object with this prefix", "")
}

// TestStoreReplaced: an object that changes after the listing is an error that names it, from a store that
// knows If-Match and from one that does not.
func TestStoreReplaced(t *testing.T) {
	dir, _ := model(t)
	h := remotetest.StartStore(t, map[string]string{"models": dir})
	d := open(t, h.Client, "s3://models")
	data, err := d.Data("large.bin")
	require.NoError(t, err)
	_, err = data.ReadAt(make([]byte, 8), 0)
	require.NoError(t, err)
	before, err := d.State("large.bin")
	require.NoError(t, err)
	h.Replaced["/models/large.bin"] = "other"
	_, err = data.ReadAt(make([]byte, 100_000), 100_000)
	requireFailure(t, err, "s3://models/large.bin: was replaced", "")
	after, err := open(t, h.Client, "s3://models").State("large.bin")
	require.NoError(t, err)
	require.NotEqual(t, before, after)

	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("list-type") {
			io.WriteString(w, `<ListBucketResult><Contents><Key>a</Key><Size>9</Size><ETag>"1"</ETag></Contents></ListBucketResult>`)
			return
		}
		w.Header().Set("ETag", `"2"`)
		io.WriteString(w, "123456789")
	}))
	defer s.Close()
	t.Setenv("AWS_ENDPOINT_URL", s.URL)
	data, err = open(t, h.Client, "s3://models").Data("a")
	require.NoError(t, err)
	_, err = data.ReadAt(make([]byte, 9), 0)
	requireFailure(t, err, "s3://models/a: was replaced", "")
}

// TestStoreRefuses: what a store refuses is one sentence without the key and its secret.
func TestStoreRefuses(t *testing.T) {
	dir, _ := model(t)
	h := remotetest.StartStore(t, map[string]string{"models": dir, "public": dir})
	for url, want := range map[string][2]string{
		"s3://none/x":      {"s3://none: the store has no such bucket", "AWS_ENDPOINT_URL"},
		"s3://elsewhere/x": {"s3://elsewhere: the bucket is in region us-test-2", "AWS_REGION"},
		"s3://":            {"is not s3://BUCKET/PREFIX", ""},
		"s3://a@b/x":       {"is not s3://BUCKET/PREFIX", ""},
	} {
		_, _, err := h.Client.Open(url, isFile, nil)
		requireFailure(t, err, want[0], want[1])
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIAOTHER")
	_, _, err := h.Client.Open("s3://models", isFile, nil)
	requireFailure(t, err, "s3://models: the store answers \"403 Forbidden\", AccessDenied", "the credentials do not give access")
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	_, _, err = h.Client.Open("s3://models", isFile, nil)
	requireFailure(t, err, "403", "set AWS_PROFILE")
	require.Equal(t, "{}", read(t, open(t, h.Client, "s3://public"), "config.json"))
	t.Setenv("AWS_ENDPOINT_URL", "file:///etc")
	_, _, err = h.Client.Open("s3://models", isFile, nil)
	requireFailure(t, err, "the endpoint of S3", "")
}

// TestStoreRedirects: another server gets neither the signature nor the session's token.
func TestStoreRedirects(t *testing.T) {
	h := remotetest.StartStore(t, nil)
	seen := make(chan http.Header, 1)
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header
		w.WriteHeader(http.StatusForbidden)
	}))
	defer other.Close()
	s := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer s.Close()
	t.Setenv("AWS_ENDPOINT_URL", s.URL)
	t.Setenv("AWS_SESSION_TOKEN", "secrettoken")
	_, _, err := h.Client.Open("s3://models", isFile, nil)
	requireFailure(t, err, "403", "")
	header := <-seen
	require.Empty(t, header.Get("Authorization"))
	require.Empty(t, header.Get("X-Amz-Security-Token"))
}

// TestStoreOfProfile: endpoint, region and key of a profile in the shared files.
func TestStoreOfProfile(t *testing.T) {
	dir, _ := model(t)
	h := remotetest.StartStore(t, map[string]string{"models": dir})
	settings := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(settings, []byte("[profile store]\nregion = eu-test-1\nservices = own\n"+
		"aws_access_key_id = "+remotetest.StoreKey+"\naws_secret_access_key = "+remotetest.StoreSecret+"\n"+
		"[services own]\ns3 =\n  endpoint_url = "+os.Getenv("AWS_ENDPOINT_URL")+"\n"), 0o600))
	for _, name := range []string{"AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_CONFIG_FILE", settings)
	t.Setenv("AWS_PROFILE", "store")
	require.Equal(t, "{}", read(t, open(t, h.Client, "s3://models"), "config.json"))
	t.Setenv("AWS_PROFILE", "none")
	_, _, err := h.Client.Open("s3://models", isFile, nil)
	requireFailure(t, err, "none", "")
}

// TestHostileStores: what no store should answer is an error, and soon.
func TestHostileStores(t *testing.T) {
	h := remotetest.StartStore(t, nil)
	for want, answer := range map[string]string{
		"does not speak S3":         "<html>",
		"goes on without end":       "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
		"no object with this pre":   "<ListBucketResult><Contents><Key>../a</Key><Size>1</Size></Contents><Contents><Key>a</Key><Size>-1</Size></Contents></ListBucketResult>",
		"a page that it had before": "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken><Contents><Key>a</Key></Contents></ListBucketResult>",
		"lists more than":           "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken>" + strings.Repeat("<Contents><Key>a</Key></Contents>", 60_000) + "</ListBucketResult>",
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, answer) }))
		t.Setenv("AWS_ENDPOINT_URL", s.URL)
		_, _, err := h.Client.Open("s3://models", isFile, nil)
		requireFailure(t, err, "s3://models: ", "")
		require.ErrorContains(t, err, want)
		s.Close()
	}
}

// TestEndlessUploads: lists of uploads and of their parts that go on with themselves are refused.
func TestEndlessUploads(t *testing.T) {
	h := remotetest.StartStore(t, nil)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "<List><IsTruncated>true</IsTruncated><Upload><Key>x</Key><UploadId>1</UploadId></Upload>"+
			"<NextKeyMarker>x</NextKeyMarker><NextPartNumberMarker>1</NextPartNumberMarker></List>")
	}))
	defer s.Close()
	t.Setenv("AWS_ENDPOINT_URL", s.URL)
	store, err := h.Client.OpenStore("s3://models")
	require.NoError(t, err)
	_, err = store.Uploads("x")
	requireFailure(t, err, "goes on with a page that it had before", "")
	_, err = store.Upload("x", 10, 10, "1")
	requireFailure(t, err, "goes on with a page that it had before", "")
}
