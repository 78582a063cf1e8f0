// The kubelet's side of its plugin sockets, made of Debian's packages of the kubelet's own API and of grpc-go: it listens,
// dials and empties its directory as a kubelet does. Commands come on standard input, one a line; each is answered by one
// line of JSON on standard output, and what plugins do by themselves is told the same way.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	plugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// How long a kubelet waits for a plugin that it dials.
const dialTimeout = 10 * time.Second

type kubelet struct {
	plugin.UnimplementedRegistrationServer
	directory string
	server    *grpc.Server
	mutex     sync.Mutex
	clients   map[string]plugin.DevicePluginClient
	refuse    int
}

var output sync.Mutex

func tell(event map[string]any) {
	output.Lock()
	defer output.Unlock()
	if err := json.NewEncoder(os.Stdout).Encode(event); err != nil {
		panic(err)
	}
}

func failed(what string, err error) map[string]any {
	return map[string]any{"event": what, "code": status.Code(err).String(), "error": status.Convert(err).Message()}
}

// dial connects to a plugin as the kubelet's device manager does: by path, with an authority of its own, and waiting.
func dial(path string) (*grpc.ClientConn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	return grpc.DialContext(ctx, path,
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithBlock(),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", address)
		}))
}

func (k *kubelet) Register(_ context.Context, request *plugin.RegisterRequest) (*plugin.Empty, error) {
	k.mutex.Lock()
	refuse := k.refuse > 0
	if refuse {
		k.refuse--
	}
	k.mutex.Unlock()
	if refuse {
		tell(map[string]any{"event": "refused", "resource": request.ResourceName})
		return nil, fmt.Errorf("no room for %s", request.ResourceName)
	}
	connection, err := dial(filepath.Join(k.directory, request.Endpoint))
	if err != nil {
		tell(failed("dial", err))
		return nil, fmt.Errorf("dialling %s: %w", request.Endpoint, err)
	}
	client := plugin.NewDevicePluginClient(connection)
	options, err := client.GetDevicePluginOptions(context.Background(), &plugin.Empty{})
	if err != nil {
		tell(failed("options", err))
		return nil, err
	}
	k.mutex.Lock()
	k.clients[request.ResourceName] = client
	k.mutex.Unlock()
	tell(map[string]any{"event": "registered", "resource": request.ResourceName, "version": request.Version,
		"preferred": options.GetPreferredAllocationAvailable, "preStart": options.PreStartRequired})
	go watch(request.ResourceName, client)
	return &plugin.Empty{}, nil
}

// watch tells each list of devices until the stream ends.
func watch(resource string, client plugin.DevicePluginClient) {
	stream, err := client.ListAndWatch(context.Background(), &plugin.Empty{})
	for err == nil {
		var list *plugin.ListAndWatchResponse
		if list, err = stream.Recv(); err != nil {
			break
		}
		healthy := map[string][]int64{}
		unhealthy := []string{}
		for _, device := range list.Devices {
			if device.Health != plugin.Healthy {
				unhealthy = append(unhealthy, device.ID)
				continue
			}
			nodes := []int64{}
			for _, node := range device.GetTopology().GetNodes() {
				nodes = append(nodes, node.ID)
			}
			healthy[device.ID] = nodes
		}
		tell(map[string]any{"event": "devices", "resource": resource, "healthy": healthy, "unhealthy": unhealthy})
	}
	event := failed("ended", err)
	event["resource"] = resource
	tell(event)
}

// start empties the directory of what plugins left, as a kubelet does, and listens.
func (k *kubelet) start() error {
	entries, err := os.ReadDir(k.directory)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			if err := os.Remove(filepath.Join(k.directory, entry.Name())); err != nil {
				return err
			}
		}
	}
	listener, err := net.Listen("unix", filepath.Join(k.directory, "kubelet.sock"))
	if err != nil {
		return err
	}
	// A kubelet that is killed leaves its socket.
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	k.clients = map[string]plugin.DevicePluginClient{}
	k.server = grpc.NewServer()
	plugin.RegisterRegistrationServer(k.server, k)
	go k.server.Serve(listener)
	return nil
}

func list(word string) []string {
	if word == "-" {
		return nil
	}
	return strings.Split(word, ",")
}

// allocate asks for containers, each a comma list of ids.
func allocate(client plugin.DevicePluginClient, containers []string) map[string]any {
	request := &plugin.AllocateRequest{}
	for _, ids := range containers {
		request.ContainerRequests = append(request.ContainerRequests, &plugin.ContainerAllocateRequest{DevicesIDs: list(ids)})
	}
	answer, err := client.Allocate(context.Background(), request)
	if err != nil {
		return failed("allocated", err)
	}
	given := []map[string]any{}
	for _, container := range answer.ContainerResponses {
		names := []string{}
		for _, device := range container.CDIDevices {
			names = append(names, device.Name)
		}
		given = append(given, map[string]any{"cdi": names, "env": container.Envs, "mounts": len(container.Mounts), "nodes": len(container.Devices)})
	}
	return map[string]any{"event": "allocated", "containers": given}
}

// preferred asks which of the available ids the plugin would take.
func preferred(client plugin.DevicePluginClient, words []string) map[string]any {
	size, err := strconv.ParseInt(words[0], 10, 32)
	if err != nil {
		return failed("preferred", err)
	}
	request := &plugin.PreferredAllocationRequest{ContainerRequests: []*plugin.ContainerPreferredAllocationRequest{
		{AllocationSize: int32(size), AvailableDeviceIDs: list(words[1]), MustIncludeDeviceIDs: list(words[2])}}}
	answer, err := client.GetPreferredAllocation(context.Background(), request)
	if err != nil {
		return failed("preferred", err)
	}
	return map[string]any{"event": "preferred", "ids": answer.ContainerResponses[0].DeviceIDs}
}

func (k *kubelet) carryOut(words []string) map[string]any {
	switch {
	case words[0] == "start":
		if err := k.start(); err != nil {
			return failed("started", err)
		}
		return map[string]any{"event": "started"}
	case words[0] == "kill":
		k.server.Stop()
		return map[string]any{"event": "killed"}
	case words[0] == "refuse" && len(words) == 2:
		k.mutex.Lock()
		defer k.mutex.Unlock()
		k.refuse, _ = strconv.Atoi(words[1])
		return map[string]any{"event": "refusing"}
	}
	if len(words) < 3 {
		return map[string]any{"event": "unknown", "command": words}
	}
	k.mutex.Lock()
	client, found := k.clients[words[1]]
	k.mutex.Unlock()
	switch {
	case !found:
		return map[string]any{"event": "unregistered", "resource": words[1]}
	case words[0] == "allocate":
		return allocate(client, words[2:])
	case words[0] == "preferred" && len(words) == 5:
		return preferred(client, words[2:])
	}
	return map[string]any{"event": "unknown", "command": words}
}

func main() {
	k := &kubelet{directory: os.Args[1]}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		tell(k.carryOut(strings.Fields(lines.Text())))
	}
}
