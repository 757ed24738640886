import java.lang.management.ManagementFactory;
import java.util.concurrent.ForkJoinPool;
import java.util.stream.Collectors;

/** One line of JSON every 100 ms: what this virtual machine takes its limits to be. */
class Probe {
    public static void main(String[] arguments) throws InterruptedException {
        String collectors = ManagementFactory.getGarbageCollectorMXBeans().stream()
            .map(bean -> bean.getName()).collect(Collectors.joining(", "));
        while (true) {
            System.out.printf("{\"processors\": %d, \"heap_limit_bytes\": %d, \"pool_threads\": %d, \"collectors\": \"%s\"}%n",
                Runtime.getRuntime().availableProcessors(), Runtime.getRuntime().maxMemory(),
                ForkJoinPool.commonPool().getParallelism(), collectors);
            Thread.sleep(100);
        }
    }
}
